"""ServeGen's workloads: a folder that says how likely what is, not what happened.

    chunk-<i>-trace.csv      instant, requests a second, cv, Gamma|Weibull, shape, scale; a row a window
    chunk-<i>-dataset.json   {window: {"input_tokens": "{length: probability, …}", "output_tokens": "{…}"}}

Each chunk is a client and becomes a tenant. Requests are drawn, seeded, client by client, so the
requests of one do not depend on which others are there. Input and output lengths are drawn apart: the
files do not say how they go together.
"""

import csv
import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from headrace.core.errors import BadInput
from headrace.workload.arrivals import RateCurve
from headrace.workload.chance import CHUNK, stream
from headrace.workload.rows import Row

_CHUNK_FILE = re.compile(r"chunk-(\d+)-trace\.csv")
_ENTRY = re.compile(r"(\d+): (\d[\d.e-]*)")
MOST_BYTES = 1 << 26
_FIELDS = 6


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    rate: float
    weibull: bool
    shape: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Values and how likely each is or a smaller one."""

    values: NDArray[np.int64]
    up_to: NDArray[np.float64]

    def draw(self, chance: RandomState) -> Iterator[int]:
        while True:
            places = np.searchsorted(self.up_to, chance.random_sample(CHUNK), side="right")
            yield from self.values[np.minimum(places, len(self.values) - 1)].tolist()


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    windows: tuple[_Window, ...]
    lengths: tuple[tuple[float, _Lengths, _Lengths], ...]
    """From an instant on: prompts, answers."""

    def rows(self, seed: int) -> Iterator[Row]:
        chance, long = stream(seed, self.name, "gaps"), stream(seed, self.name, "lengths")
        draws = [(prompt.draw(long), output.draw(long)) for _, prompt, output in self.lengths]
        starts = [start_s for start_s, _, _ in self.lengths]
        for at_s in self._arrivals(chance):
            prompts, outputs = draws[max(0, bisect_right(starts, at_s) - 1)]
            yield Row(0, round(at_s * 1e9), next(prompts), next(outputs), tenant=self.name)

    def _arrivals(self, chance: RandomState) -> Iterator[float]:
        """Gaps as regular as the window in which they begin, stretched by the rate over time."""
        starts = [window.start_s for window in self.windows]
        curve = _steps(self.windows)
        window = next((window for window in self.windows if window.rate), None)
        if window is None:
            return
        passed = _gap(window, chance) * chance.random_sample()
        while passed < curve.expected:
            at_s = curve.when(passed)
            yield at_s
            window = self.windows[bisect_right(starts, at_s) - 1]
            passed += _gap(window, chance)


def servegen(folder: Path, seed: int) -> Iterator[Row]:
    """Raises `BadInput` with the file that is wrong."""
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is no folder", "ServeGen's form is a folder of chunk-<i>-trace.csv and …-dataset.json"
        )
    found = [
        (int(match[1]), path) for path in folder.iterdir() if (match := _CHUNK_FILE.fullmatch(path.name))
    ]
    if not found:
        raise BadInput(f"{folder} holds no chunk-<i>-trace.csv", "a folder is read as ServeGen's form")
    clients = [_client(f"client-{number}", path) for number, path in sorted(found)]
    merged = heapq.merge(*(client.rows(seed) for client in clients), key=lambda row: row.at_ns)
    return (row._replace(line=number) for number, row in enumerate(merged, start=1))


def _client(name: str, path: Path) -> _Client:
    windows = tuple(_windows(path))
    if not windows:
        raise BadInput(f"{path} is empty")
    dataset = path.with_name(path.name.replace("trace.csv", "dataset.json"))
    if dataset.stat().st_size > MOST_BYTES:
        raise BadInput(f"{dataset} is larger than {MOST_BYTES} bytes")
    try:
        said = msgspec.json.decode(dataset.read_bytes(), type=dict[str, dict[str, str]])
        lengths = sorted(
            (
                float(start),
                _lengths(dataset, fields, "input_tokens"),
                _lengths(dataset, fields, "output_tokens"),
            )
            for start, fields in said.items()
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput(f"{dataset} is no dataset of ServeGen: {error}", "it may be cut off") from error
    if not lengths:
        raise BadInput(f"{dataset} names no window")
    return _Client(name, windows, tuple(lengths))


def _windows(path: Path) -> Iterator[_Window]:
    before_s = -math.inf
    with path.open(newline="") as file:
        for number, fields in enumerate(csv.reader(file), start=1):
            if len(fields) != _FIELDS:
                raise BadInput(
                    f"{path}, line {number}: {len(fields)} fields of {_FIELDS}", "it may be cut off"
                )
            try:
                start_s, rate, kind, shape = float(fields[0]), float(fields[1]), fields[3], float(fields[4])
            except ValueError as error:
                raise BadInput(f"{path}, line {number}: {error}", "the line may be cut off") from error
            if not 0 <= rate < math.inf:
                raise BadInput(f"{path}, line {number}: {rate:g} requests a second; it must be 0 or more")
            if not before_s < start_s < math.inf:
                raise BadInput(
                    f"{path}, line {number}: a window from {start_s:g} s after one from {before_s:g} s",
                    "sort the windows by their first field",
                )
            if rate and not (kind in {"Gamma", "Weibull"} and 0.01 <= shape < math.inf):
                raise BadInput(f"{path}, line {number}: gaps of a {kind!r} distribution of shape {shape:g}")
            before_s = start_s
            yield _Window(start_s, rate, kind == "Weibull", shape)


def _steps(windows: Sequence[_Window]) -> RateCurve:
    """Each rate from its window's start to the next; the last one lasts as long as the one before it."""
    last_s = windows[-1].start_s - windows[-2].start_s if len(windows) > 1 else 600.0
    ends = [*(window.start_s for window in windows[1:]), windows[-1].start_s + last_s]
    knots = [
        (at, window.rate) for window, end in zip(windows, ends, strict=True) for at in (window.start_s, end)
    ]
    return RateCurve.through(knots)


def _gap(window: _Window, chance: RandomState) -> float:
    """With mean 1. The file's scale says the rate once more, less exactly."""
    if not window.rate:
        return chance.standard_exponential()
    if window.weibull:
        return chance.weibull(window.shape) / math.gamma(1 + 1 / window.shape)
    return chance.standard_gamma(window.shape) / window.shape


def _lengths(path: Path, fields: dict[str, str], name: str) -> _Lengths:
    pairs = [(int(value), float(weight)) for value, weight in _ENTRY.findall(fields.get(name, ""))]
    weights = np.array([weight for _, weight in pairs])
    if not len(weights) or not weights.sum() > 0:
        raise BadInput(f"{path}: no {name}")
    values = np.array([value for value, _ in pairs])
    return _Lengths(values, np.cumsum(weights) / weights.sum())
