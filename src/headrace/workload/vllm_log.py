"""vLLM's server log, where it was told to log requests (`--enable-log-requests`).

Lengths are in it only where token ids are: with VLLM_LOGGING_LEVEL=DEBUG and `--enable-log-outputs` (0.18 and
later), or in the older lines that carry the prompt. An answer whose tokens are not logged is taken
to be as long as it was allowed to be. Times are whole seconds, and of no year.

    Received request ID: … params: SamplingParams(… max_tokens=N …) … [prompt_token_ids: […]]
    Request ID details: prompt: '…', prompt_token_ids: […], …
    Generated response ID details: output_token_ids: […]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.core.errors import BadInput
from headrace.workload.prefix_names import PrefixNames
from headrace.workload.rows import Lines, Row

_LINE = re.compile(rb"(?:INFO|DEBUG|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d ")
_STAMP = re.compile(rb"(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_RECEIVED = re.compile(rb"\] Received request (\S+): .*params: SamplingParams\((.*)")
_DETAILS = re.compile(rb"\] Request (\S+) details: prompt: .*prompt_token_ids: \[([\d, ]*)\]")
_RESPONSE = re.compile(rb"\] Generated response (\S+?)(?: \(streaming \w+\))?(?: details)?: ")
_PROMPT_IDS = re.compile(rb".*prompt_token_ids: \[([\d, ]*)\]")
_OUTPUT_IDS = re.compile(rb".*output_token_ids: \[([\d, ]*)\]")
_MAX_TOKENS = re.compile(rb"max_tokens=(\d+)")
_LEAP_YEAR = 2024  # any date of a year without a name exists in it
_START = datetime(_LEAP_YEAR, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Seen:
    """What the lines of one request have said so far."""

    line: int
    at_ns: int
    max_tokens: int = 0
    prompt: bytes | None = None
    output_tokens: int | None = None


def is_vllm_log(line: bytes) -> bool:
    return _LINE.search(line) is not None


def vllm_log(path: Path, lines: Lines, names: PrefixNames) -> Iterator[Row]:
    """All of it, in order of arrival; other lines of the log are passed over."""
    seen = dict[bytes, _Seen]()
    clock = _Clock(path)
    number = 0
    for number, line in lines:
        if (match := _RECEIVED.search(line)) is not None:
            seen[match[1]] = _received(number, clock.at_ns(number, line), match, seen.get(match[1]))
        elif (match := _DETAILS.search(line)) is not None:
            # The details of a request come before the line that says it was received.
            seen.setdefault(match[1], _Seen(number, clock.at_ns(number, line))).prompt = match[2]
        elif (match := _RESPONSE.search(line)) is not None and match[1] in seen:
            _answered(seen[match[1]], line)
    if not any(request.prompt is not None for request in seen.values()):
        raise BadInput(
            f"{path}: {number} lines, {len(seen)} requests, and of none the prompt's length",
            "start vLLM with VLLM_LOGGING_LEVEL=DEBUG and --enable-log-requests --enable-log-outputs",
        )
    for request in sorted(seen.values(), key=lambda each: (each.at_ns, each.line)):
        tokens = _numbers(request.prompt or b"")
        output = request.max_tokens if request.output_tokens is None else request.output_tokens
        # Without a prompt's length it is left out, and counted.
        yield Row(
            request.line,
            request.at_ns,
            len(tokens),
            output if tokens else 0,
            prefix_ids=names.of_tokens(tokens),
        )


def _received(number: int, at_ns: int, match: re.Match[bytes], before: _Seen | None) -> _Seen:
    said = match[2]
    allowed = _MAX_TOKENS.search(said)
    request = before or _Seen(number, at_ns)
    request.max_tokens = int(allowed[1]) if allowed else 0
    if (older := _PROMPT_IDS.match(said)) is not None:
        request.prompt = older[1]
    return request


def _answered(request: _Seen, line: bytes) -> None:
    """A streamed answer has a line for each piece, and one without tokens at its end."""
    if (ids := _OUTPUT_IDS.match(line)) is not None:
        request.output_tokens = (request.output_tokens or 0) + len(_numbers(ids[1]))


def _numbers(listed: bytes) -> list[int]:
    return [int(number) for number in listed.split(b",") if number.strip()]


class _Clock:
    """Times without a year: where the month jumps back, the next year has begun."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._year = _LEAP_YEAR
        self._month = 0

    def at_ns(self, number: int, line: bytes) -> int:
        match = _STAMP.search(line)
        if match is None:
            raise BadInput(f"{self._path}, line {number}: a request without a time")
        try:
            month, day, hour, minute, second = (int(part) for part in match.groups())
            if month < self._month - 6:
                self._year += 1
            self._month = month
            # The next leap year is four years on, and no log lasts that long: a leap day is one of the first.
            at = datetime(self._year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError as error:
            raise BadInput(f"{self._path}, line {number}: {error}") from error
        return (at - _START) // timedelta(seconds=1) * 10**9
