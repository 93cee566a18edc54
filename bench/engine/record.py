"""What has been measured so far: one `Visit` a line, so that the benchmark can be done in parts.

Record(FILE.jsonl) -> add(Visit), pairs(peer, point) -> [(ours, theirs), ...]      neighbours in time
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from headrace.core.timeline import Failure, Timeline

OURS = "headrace"


class Place(StrEnum):
    """How an engine was asked. Only visits of the same place are compared."""

    IN_PROCESS = "in_process"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Shares:
    """Where our steps' time went."""

    schedule_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    step_ns: int = 0
    steps: int = 0

    def plus(self, other: "Shares") -> "Shares":
        mine, theirs = asdict(self), asdict(other)
        return Shares(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True, slots=True)
class Visit:
    """One engine at one point, once."""

    place: str
    round: str
    """Visits of one round were neighbours in time and had the same load."""
    peer: str
    point: str
    tokens_per_s: float
    prompt_tokens: int
    ttft_ms: dict[str, list[float]]
    """By class of request, one each."""
    itl_ms: list[float]
    """Every gap between two tokens of one answer."""
    failed: int = 0
    others_cores: float | None = None
    """Processors that programs of others kept busy meanwhile."""
    shares: Shares | None = None


@dataclass(frozen=True, slots=True)
class When:
    """A round: whose visits are compared with each other."""

    place: Place
    round: str
    seed: int
    """Of its prompts, which are the same for everybody."""


def visit_of(
    when: When,
    peer: str,
    point: str,
    runs: Sequence[Sequence[Timeline | Failure]],
    others_cores: float | None,
    shares: Shares | None = None,
) -> Visit:
    """`runs` came one after the other, each with a clock of its own that began at 0."""
    lives = [[each for each in run if isinstance(each, Timeline)] for run in runs]
    every = [life for run in lives for life in run]
    seconds = sum(max((life.token_at[-1] for life in run), default=0.0) for run in lives)
    ttft_ms: dict[str, list[float]] = {}
    for life in every:
        ttft_ms.setdefault(life.request_class, []).append(_ms(life.ttft_s))
    return Visit(
        place=when.place.value,
        round=when.round,
        peer=peer,
        point=point,
        tokens_per_s=sum(len(life.token_at) for life in every) / seconds if seconds else 0.0,
        prompt_tokens=sum(life.prompt_tokens for life in every),
        ttft_ms=ttft_ms,
        itl_ms=[_ms(gap_s) for life in every for gap_s in life.itl_s],
        failed=sum(map(len, runs)) - len(every),
        others_cores=None if others_cores is None else round(others_cores, 3),
        shares=shares,
    )


class Record:
    """With a path, also kept there; what the file holds already is part of the result."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._visits: list[Visit] = []
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                shares = row.pop("shares")
                self._visits.append(Visit(**row, shares=None if shares is None else Shares(**shares)))

    def add(self, visit: Visit) -> None:
        self._visits.append(visit)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(visit)) + "\n")

    def of(self, place: Place, peer: str, point: str) -> list[Visit]:
        return [v for v in self._visits if (v.place, v.peer, v.point) == (place.value, peer, point)]

    def pairs(self, place: Place, peer: str, point: str, ours: str = OURS) -> list[tuple[Visit, Visit]]:
        """Ours and theirs of the same rounds; a round that was broken off has no pair."""
        theirs = {visit.round: visit for visit in self.of(place, peer, point)}
        return [(v, theirs[v.round]) for v in self.of(place, ours, point) if v.round in theirs]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
