"""Finds tool calls in the text of an answer, as it comes.

    push(text) -> Found(content, calls)        finish() -> what is left

A call is told as soon as it is whole, so what turns out to be no call is text and nothing is lost.
The one named function needs no search: its arguments are the answer, and pass through in pieces.

    auto       Let me see. <tool_call>{"name": "f", "arguments": {...}}</tool_call>     Hermes' format
    required   [{"name": "f", "parameters": {...}}, ...]                                 vLLM's schema
    named      {...}                                                                     the arguments
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headrace.net.tool_fields import ToolChoice, ToolUse

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call, or more of the arguments of one that has been told."""

    index: int
    name: str | None
    """None: more arguments."""
    arguments: str


@dataclass(slots=True)
class Found:
    content: str = ""
    calls: list[CallPart] = field(default_factory=list[CallPart])


class CallFinder(Protocol):
    def push(self, text: str) -> Found: ...

    def finish(self) -> Found:
        """What was held back, once the answer has ended."""
        ...


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


def call_finder(use: ToolUse) -> CallFinder:
    match use.choice:
        case ToolChoice.AUTO:
            return MarkedCalls(use.most_calls)
        case ToolChoice.REQUIRED:
            return ListedCalls()
        case ToolChoice.NAMED:
            return NamedCall(use.name)


class MarkedCalls:
    """JSON between `<tool_call>` and `</tool_call>`, in the middle of text."""

    def __init__(self, most_calls: int | None) -> None:
        self._most_calls = most_calls
        self._held = ""
        self._inside = False
        self._told = 0
        self._after_call = False

    def push(self, text: str) -> Found:
        self._held += text
        found = Found()
        while self._advance(found):
            pass
        return found

    def finish(self) -> Found:
        found, held = Found(), self._held
        self._held = ""
        if self._inside:
            self._take(held, held.removesuffix(CLOSING), OPENING, found)
        else:
            self._say(held, found)
        return found

    def _advance(self, found: Found) -> bool:
        """Handle what comes before the next mark, and the mark. False when it has not come yet."""
        mark = CLOSING if self._inside else OPENING
        before, seen, after = self._held.partition(mark)
        if not seen:
            if not self._inside:
                kept = _beginning_at_end(before, mark)
                self._say(before[: len(before) - kept], found)
                self._held = before[len(before) - kept :]
            return False
        if self._inside:
            self._take(before + mark, before, OPENING, found)
        else:
            self._say(before, found)
        self._inside, self._held = not self._inside, after
        return True

    def _take(self, raw: str, body: str, opening: str, found: Found) -> None:
        call = _read_call(body)
        if call is None:
            self._say(opening + raw, found)
            return
        if self._most_calls is None or self._told < self._most_calls:
            found.calls.append(CallPart(self._told, *call))
            self._told += 1
        self._after_call = True

    def _say(self, text: str, found: Found) -> None:
        """The line breaks that models put between calls are no text."""
        if self._after_call:
            text = text.lstrip()
        if text:
            found.content += text
            self._after_call = False


class ListedCalls:
    """A JSON list of calls, which is all there is."""

    def __init__(self) -> None:
        self._held = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self._told = 0

    def push(self, text: str) -> Found:
        found = Found()
        for character in text:
            if self._depth or character not in "[], \t\r\n":
                self._held += character
                if self._closes(character):
                    self._take(found)
        return found

    def finish(self) -> Found:
        held, self._held = self._held, ""
        return Found(content=held)

    def _take(self, found: Found) -> None:
        call = _read_call(self._held)
        if call is None:
            found.content += self._held
        else:
            found.calls.append(CallPart(self._told, *call))
            self._told += 1
        self._held = ""

    def _closes(self, character: str) -> bool:
        """Whether this character ends the outermost object."""
        if self._in_string:
            ends = character == '"' and not self._escaped
            self._escaped = character == "\\" and not self._escaped
            self._in_string = not ends
            return False
        self._in_string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        return self._depth == 0 and character in "}]"


class NamedCall:
    """The whole answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> Found:
        if not text:
            return Found()
        part = CallPart(0, self._name, text)
        self._name = None
        return Found(calls=[part])

    def finish(self) -> Found:
        return Found()


def _read_call(text: str) -> tuple[str, str] | None:
    """Name and arguments, the arguments as JSON text. None for what is no call."""
    try:
        call = msgspec.json.decode(text, type=_Call)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    arguments = call.arguments if call.arguments is not None else call.parameters
    return None if arguments is None else (call.name, msgspec.json.encode(arguments).decode())


def _beginning_at_end(text: str, mark: str) -> int:
    """How many characters at the end of `text` could be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
