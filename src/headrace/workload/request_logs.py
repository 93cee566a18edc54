"""Logs of requests as JSON lines: what gateways and proxies write, and OpenAI's own objects.

    {"timestamp": …, "request": {"messages": […]}, "usage": {"prompt_tokens": 374, "completion_tokens": 44}}

There is no one form, so each fact is looked for under the names that are in use (docs/workloads.md);
LiteLLM's, OpenAI's and plain ones are among them. Of a text only salted hashes and lengths go on.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import BadInput
from headrace.workload.prefix_names import PrefixNames
from headrace.workload.rows import Lines, Row, decoded, since_epoch_ns

_WHEN = (
    *("arrival_time", "arrived_at", "startTime", "start_time", "request_time", "created_at", "created"),
    *("timestamp", "time", "ts", "response.created", "response.created_at"),
)
_ENDED = ("endTime", "end_time", "completed_at", "finished_at", "ended_at")
_LASTED_MS = ("latency_ms", "duration_ms", "response_time_ms", "total_time_ms")
_USAGE = ("usage", "response.usage", "response.body.usage", "")
_PROMPT_TOKENS = ("prompt_tokens", "input_tokens", "input_length")
_OUTPUT_TOKENS = ("completion_tokens", "output_tokens", "output_length")
_BODY = ("request", "request_body", "body", "request.body", "")
_PROMPT = ("messages", "prompt", "input")
_PERSON = ("user", "end_user", "tenant", "user_id", "request.user", "body.user")
_SESSION = ("session_id", "conversation_id", "session", "trace_id")
_CLASS = ("class", "request_class", "service_tier", "request.service_tier", "body.service_tier")
_PRIORITY = ("priority", "request.priority", "body.priority")

_MILLISECONDS_FROM, _MICROSECONDS_FROM, _NANOSECONDS_FROM = 1e11, 1e14, 1e17
"""As seconds since 1970 these would be the years 5138 and later."""

Entry = dict[str, Any]


def is_request_log(entry: Entry) -> bool:
    known = _tokens(entry, _OUTPUT_TOKENS) is not None or _prompt(entry) is not None
    return known and _first(entry, _WHEN) is not None


def request_log(path: Path, lines: Lines, names: PrefixNames) -> Iterator[Row]:
    """In the order of the file.

    A line without any token of an answer, as of one that failed, has an output of 0 tokens.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in lines:
        entry = decoded(path, number, line, decoder)
        at_ns = _when_ns(path, number, entry)
        prompt = _prompt(entry)
        text = "" if prompt is None else as_text(prompt)
        prompt_tokens = _tokens(entry, _PROMPT_TOKENS)
        if prompt_tokens is None:
            prompt_tokens = names.count(text) or 0
        output_tokens = _tokens(entry, _OUTPUT_TOKENS) or 0
        if output_tokens and not prompt_tokens:
            raise BadInput(
                f"{path}, line {number}: an answer of {output_tokens} tokens, and no number of prompt tokens",
                "give --tokenizer, so that they can be counted",
            )
        person, session = _first(entry, _PERSON), _first(entry, _SESSION)
        yield Row(
            number,
            at_ns,
            prompt_tokens,
            output_tokens,
            request_class=str(_first(entry, _CLASS) or "trace"),
            prefix_ids=names.of_text(text)[: max(0, prompt_tokens) // names.block_tokens],
            priority=_whole(_first(entry, _PRIORITY)),
            tenant="" if person is None else names.of_person(str(person)),
            session="" if session is None else names.of_person(str(session)),
            ended_ns=_ended_ns(entry, at_ns),
        )


def as_text(prompt: object) -> str:
    """Messages one after another, as a chat template would put them; equal beginnings stay equal."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        return _plain(prompt)
    return "\n".join(
        f"{message.get('role', '')}\n{_content(message)}" if isinstance(message, dict) else _plain(message)
        for message in prompt
    )


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    said = [part.get("text") or _plain(part) if isinstance(part, dict) else _plain(part) for part in parts]
    calls = message.get("tool_calls")
    return "\n".join([*said, *([_plain(calls)] if calls else [])])


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value, order="deterministic").decode()


def _when_ns(path: Path, number: int, entry: Entry) -> int:
    when = _first(entry, _WHEN)
    at_ns = _instant_ns(when)
    if at_ns is not None:
        return at_ns
    raise BadInput(
        f"{path}, line {number}: no time of arrival{'' if when is None else f' in {when!r:.60}'}",
        f"looked for under {', '.join(_WHEN)}",
    )


def _ended_ns(entry: Entry, at_ns: int) -> int | None:
    """None where the log does not say, or says that it ended before it began."""
    ended_ns = _instant_ns(_first(entry, _ENDED))
    lasted_ms = _first(entry, _LASTED_MS)
    if ended_ns is None and isinstance(lasted_ms, int | float) and 0 <= lasted_ms < 1e12:
        ended_ns = at_ns + round(lasted_ms * 1e6)
    return ended_ns if ended_ns is not None and ended_ns >= at_ns else None


def _instant_ns(when: object) -> int | None:
    """Of a date, or of a number whose size says its unit; None for all else."""
    try:
        if isinstance(when, str):
            return since_epoch_ns(when)
    except ValueError:
        return None
    if not isinstance(when, int | float) or not abs(when) < 1e20:
        return None
    unit_ns = next(
        (ns for least, ns in ((_NANOSECONDS_FROM, 1), (_MICROSECONDS_FROM, 1e3)) if when >= least),
        1e6 if when >= _MILLISECONDS_FROM else 1e9,
    )
    return round(when * unit_ns)


def _prompt(entry: Entry) -> object:
    for body in _BODY:
        found = _at(entry, body)
        if isinstance(found, dict):
            for name in _PROMPT:
                if found.get(name):
                    return found[name]
    return None


def _tokens(entry: Entry, names: Sequence[str]) -> int | None:
    for usage in _USAGE:
        found = _at(entry, usage)
        if isinstance(found, dict):
            for name in names:
                if isinstance(tokens := found.get(name), int) and not isinstance(tokens, bool):
                    return tokens
    return None


def _first(entry: Entry, paths: Sequence[str]) -> Any:
    return next((found for path in paths if (found := _at(entry, path)) not in (None, "")), None)


def _at(entry: Entry, path: str) -> Any:
    found: Any = entry
    for key in filter(None, path.split(".")):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
