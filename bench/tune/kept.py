"""What a twin said, on disk: whoever asks the same twin again, today or next month, waits for nothing.

    Twin + file --kept--> Predict        points that the file has are read, others are simulated and added

A twin is known by what it is made of (requests, starting settings, goal) and by what it says at a few points,
so that another cost, or a simulator that decides otherwise, finds nothing here that is not its own.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.tune.twins import Twin
from headrace.core.grade import Grade
from headrace.core.trial import NoResult
from headrace.tune.twin import Point, Predict, load_of

PROBES = (Point({}), Point({}, load_of(16)))
_TABLE = "create table if not exists said (twin text, point text, found blob, primary key (twin, point))"


class _Found(msgspec.Struct):
    """One of the two."""

    grade: Grade | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A `Predict`."""

    twin: Twin
    path: Path
    name: str

    def __call__(self, points: Sequence[Point]) -> list[Grade | NoResult]:
        with closing(sqlite3.connect(self.path, timeout=60.0)) as file, file:
            file.execute(_TABLE)
            return [self._one(point, file) for point in points]

    def _one(self, point: Point, file: sqlite3.Connection) -> Grade | NoResult:
        key = msgspec.json.encode(point.key).decode()
        row = file.execute("select found from said where twin = ? and point = ?", (self.name, key)).fetchone()
        if row is not None:
            return _read(row[0])
        (found,) = self.twin([point])
        file.execute("insert or replace into said values (?, ?, ?)", (self.name, key, _written(found)))
        file.commit()
        return found


def kept(twin: Twin, path: Path | None) -> Predict:
    """The twin itself without a file."""
    return twin if path is None else Kept(twin, path, _name(twin))


def _name(twin: Twin) -> str:
    made_of = msgspec.msgpack.encode([twin.requests, twin.start, twin.goal, [*map(_told, twin(PROBES))]])
    return hashlib.sha256(made_of).hexdigest()[:32]


def _told(found: Grade | NoResult) -> _Found:
    return _Found(failed=found.cause) if isinstance(found, NoResult) else _Found(grade=found)


def _written(found: Grade | NoResult) -> bytes:
    return msgspec.msgpack.encode(_told(found))


def _read(data: bytes) -> Grade | NoResult:
    found = msgspec.msgpack.decode(data, type=_Found)
    return found.grade if found.grade is not None else NoResult(found.failed or "")
