"""What a tuning has found so far, on disk, so that nothing is measured twice.

    DIR/journal.jsonl    {"question": …}                       line 1: what is tuned, for what, which load
                         {"survey": …}                         what the server and the machine are like
                         {"run": …}, {"run": …}, …             one line a run, in order
    DIR/run-01.jsonl …   the record of each run that gave one  (measure.record)
    DIR/cost.json        what the twin is made of              (cli.costs)
    DIR/workload.jsonl   what is sent                          (workload.own_form)

A line is added when what it tells of is on the disk, and is itself on the disk before anything goes on. A
process that dies leaves at most half a line at the end, which the next one takes away: that run was not
over. Two processes cannot write one journal.
"""

import fcntl
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import msgspec

from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import Purpose
from headrace.measure import record

FORMAT, VERSION = "headrace.tune", 1
NAME = "journal.jsonl"
_OURS = (NAME, "run-*.jsonl", "cost.json", "workload.jsonl")
_HINT = "--fresh starts over; --journal DIR names another folder"

Question = Mapping[str, str]
"""Everything that the answer depends on, in words; not how long the search may take."""


@dataclass(frozen=True, slots=True)
class Made:
    """One run that was made."""

    overrides: Overrides
    load: float
    purpose: Purpose
    took_s: float
    """With starting and stopping the server."""
    at: str
    """When it ended, in UTC."""
    command: str
    """What a person would type for it."""
    record: str | None = None
    """The file of its measurement, beside the journal; None where there is none, and `failed` says why."""
    failed: str | None = None
    is_steady: bool | None = None
    preemptions: int | None = None
    invalid: str | None = None
    """How our own side has spoiled it, twice; its figures count all the same."""
    busy_cores: float | None = None
    """Processors at work meanwhile, on average, ours and others'."""
    others_cores: float | None = None
    """Of these, neither the server's nor this client's."""


class _Line(msgspec.Struct, omit_defaults=True):
    """One of these."""

    format: str = ""
    version: int = 0
    question: dict[str, str] | None = None
    survey: msgspec.Raw = msgspec.Raw()
    run: Made | None = None


class _Took(msgspec.Struct):
    """What every survey tells."""

    took_s: float = 0.0


_ENCODER = msgspec.json.Encoder()
_LINES = msgspec.json.Decoder(_Line)


class Journal:
    """One tuning. `with Journal.opened(...)` holds it against other processes."""

    def __init__(self, folder: Path, file: IO[bytes], lines: list[_Line]) -> None:
        self.folder = folder
        self._file = file
        self.runs = [line.run for line in lines if line.run is not None]
        surveys = [bytes(line.survey) for line in lines if line.survey]
        self.survey: bytes | None = surveys[-1] if surveys else None

    @classmethod
    def opened(cls, folder: Path, question: Question, *, fresh: bool = False) -> Self:
        """Raises `BadInput` where it is another tuning's, in use, broken, or cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / NAME).open("a+b")
        except OSError as error:
            raise BadInput(f"the journal {folder} cannot be written: {error.strerror}", _HINT) from error
        try:
            _hold(file, folder)
            if fresh:
                _forget(folder, file)
            return cls(folder, file, _lines_for(folder, file, question))
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def spent_s(self) -> float:
        """Of the budget, by those who wrote here before."""
        survey = msgspec.json.decode(self.survey, type=_Took).took_s if self.survey else 0.0
        return survey + sum(run.took_s for run in self.runs)

    @property
    def cost(self) -> Path:
        return self.folder / "cost.json"

    def keep_survey(self, survey: object) -> None:
        """Anything that `msgspec` writes."""
        self.survey = _ENCODER.encode(survey)
        _append(self._file, _Line(survey=msgspec.Raw(self.survey)))

    def next_record(self) -> str:
        return f"run-{len(self.runs) + 1:02}.jsonl"

    def keep(self, made: Made, measurement: Measurement | None) -> None:
        """The measurement first: a line that names a file is only there when the file is."""
        if measurement is not None:
            assert made.record is not None, "a measurement has a file"
            record.write(measurement, self.folder / made.record)
            _sync_folder(self.folder)
        _append(self._file, _Line(run=made))
        self.runs.append(made)

    def measurement(self, made: Made) -> Measurement | None:
        """None of a run that gave none. Raises `BadInput` for a record that is gone or broken."""
        return None if made.record is None else record.read(self.folder / made.record)


def default_folder(question: Question) -> Path:
    """In the user's folder for state, the same for the same question."""
    told = msgspec.json.encode(dict(sorted(question.items())))
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "headrace" / "tune" / hashlib.sha256(told).hexdigest()[:16]


def file_identity(path: Path) -> str:
    """Two files of the same content are the same workload, wherever they lie."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    return f"{path.name}, sha256 {digest.hexdigest()[:16]}"


def _hold(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise BadInput(f"another tuning is writing the journal {folder}", "wait for it, or end it") from error


def _forget(folder: Path, file: IO[bytes]) -> None:
    """What we have written there and nothing else."""
    file.truncate(0)
    for pattern in _OURS[1:]:
        for path in folder.glob(pattern):
            path.unlink()


def _lines_for(folder: Path, file: IO[bytes], question: Question) -> list[_Line]:
    """What is there, once it is about this question; where nothing is, the question is written."""
    file.seek(0)
    whole = file.read()
    half = len(whole) - (whole.rfind(b"\n") + 1)
    if half:
        file.truncate(len(whole) - half)
    lines = [
        _decoded(folder, number, line)
        for number, line in enumerate(whole[: len(whole) - half].splitlines(), 1)
    ]
    if not lines:
        _append(file, _Line(FORMAT, VERSION, dict(question)))
        _sync_folder(folder)
        return []
    head = lines[0]
    if head.format != FORMAT or head.version != VERSION or head.question is None:
        raise BadInput(f"{folder / NAME} is no journal of version {VERSION} of a tuning", _HINT)
    if head.question != dict(question):
        raise BadInput(
            f"{folder} is the journal of another tuning: {_difference(head.question, question)}", _HINT
        )
    return lines


def _decoded(folder: Path, number: int, line: bytes) -> _Line:
    try:
        return _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{folder / NAME}, line {number}: {error}", _HINT) from error


def _difference(theirs: Question, ours: Question) -> str:
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    said = (
        f"{name} was {theirs.get(name, 'not said')!r} and is {ours.get(name, 'not said')!r}" for name in names
    )
    return "; ".join(said)


def _append(file: IO[bytes], line: _Line) -> None:
    try:
        file.write(_ENCODER.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise BadInput(f"the journal cannot be written: {error.strerror}", "make room on the disk") from error


def _sync_folder(folder: Path) -> None:
    """So that a new file's name is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
