"""Files as lines, in bounded memory, whatever is in them.

    path -> open_bytes -> chunks -> lines that hold one of some words

A cut gzip gives what could be unpacked; a binary file is refused; a line longer than `LONGEST_LINE` is cut.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.errors import BadInput

CHUNK = 1 << 20
LONGEST_LINE = 1 << 15
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

_TIME = re.compile(r"(?<!\d)(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d")


def plain(text: str) -> str:
    """Without terminal escapes, control characters and marks that reverse the direction of writing."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str


class Source:
    """One file, unpacked if it is a gzip. `cut` says after reading whether its end was missing.

    `name` is what people know it by, where that is not the file's own.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path = path
        self.name = name or plain(path.name)
        self.cut = False
        self._bytes, self._lines, self._tail = 0, 0, b""

    @property
    def cut_after(self) -> str:
        """Where what could be unpacked ends, for a person."""
        told = _TIME.findall(self._tail.decode("utf-8", "replace"))
        at = f", at {told[-1]}" if told else ""
        return f"line {self._lines + 1:,} ({self._bytes / 1e6:,.2f} MB unpacked{at})"

    def head(self, size: int = 1 << 16) -> str:
        """Its beginning as text. Raises `BadInput` for what is no text."""
        start = next(self.chunks(size), b"")
        if start.count(0) > len(start) // 100:
            raise BadInput(f"{self.name} is not text", "give a log, a /metrics page, JSON, YAML or flags")
        return start.decode("utf-8", "replace")

    def whole(self, most: int) -> str:
        """All of it. Raises `BadInput` if it is larger than `most` bytes."""
        parts, size = list[bytes](), 0
        for chunk in self.chunks(CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > most:
                raise BadInput(f"{self.name} is larger than {most // 2**20} MiB, too much for its kind")
        return b"".join(parts).decode("utf-8", "replace")

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        self._bytes, self._lines = 0, 0
        try:
            with self._open() as file:
                while chunk := file.read1(size):
                    self._bytes += len(chunk)
                    self._lines += chunk.count(b"\n")
                    self._tail = chunk[-LONGEST_LINE:]
                    yield chunk
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.cut = True
        except OSError as error:
            raise BadInput(f"{self.name} cannot be read: {error.strerror or error}") from error

    def _open(self) -> "gzip.GzipFile | BufferedReader | _Utf16":
        with self.path.open("rb") as file:
            mark = file.read(2)
        if mark == _GZIP:
            return gzip.open(self.path)
        return _Utf16(self.path) if mark in _UTF16 else self.path.open("rb")

    def lines_with(self, words: Sequence[bytes]) -> Iterator[Line]:
        """The lines that hold one of `words`, in order. Every other line is only counted."""
        number, rest = 1, b""
        for chunk in self.chunks():
            end = chunk.rfind(b"\n")
            if end < 0:
                rest = (rest + chunk)[:LONGEST_LINE]
                continue
            block = rest + chunk[: end + 1]
            yield from _found(block, words, number)
            number += block.count(b"\n")
            rest = chunk[end + 1 :]
        if rest:
            yield from _found(rest, words, number)


class _Utf16:
    """A text of two bytes a letter as UTF-8: what `>` of Windows PowerShell writes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-16", errors="replace", newline="")

    def __enter__(self) -> "_Utf16":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read1(self, size: int) -> bytes:
        return self._file.read(size).encode("utf-8", "replace")


_MASK = np.uint32((1 << 20) - 1)
_FIRST, _SECOND = np.uint32(40_503), np.uint32(631)
_FEW = 1 << 12
"""Bytes: below it looking for all words is as fast as finding out which there can be."""


def _possible(block: bytes, words: Sequence[bytes]) -> Sequence[bytes]:
    """Those of `words` all of whose runs of three bytes occur somewhere in `block`: most do not, and looking
    for each of two hundred words is what takes the time.
    """
    if len(block) < _FEW:
        return words
    there = np.zeros(int(_MASK) + 1, dtype=np.bool_)
    there[_trigrams(block)] = True
    return [word for word in words if there[_trigrams(word)].all()]


def _trigrams(text: bytes) -> npt.NDArray[np.uint32]:
    """Every run of three bytes as a number below 2**20; two may share one."""
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.uint32)
    return (codes[:-2] * _FIRST ^ codes[1:-1] * _SECOND ^ codes[2:]) & _MASK


def _found(block: bytes, words: Sequence[bytes], number: int) -> Iterator[Line]:
    starts = set[int]()
    for word in _possible(block, words):
        at = block.find(word)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(word, end) if end >= 0 else -1
    counted, before = 0, number
    for start in sorted(starts):
        before += block.count(b"\n", counted, start)
        counted = start
        end = block.find(b"\n", start)
        line = block[start : len(block) if end < 0 else end][:LONGEST_LINE]
        yield Line(before, plain(line.decode("utf-8", "replace")))
