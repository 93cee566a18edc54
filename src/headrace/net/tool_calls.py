"""Finds tool calls in the text of an answer, as it comes.

    push(text) -> Found(content, calls)        finish() -> what is left

In a stream a call is told as it is written: its name once that and the beginning of its arguments
stand, then more of the arguments with every token. In a whole answer what turns out to be no call is
text, and nothing is lost. Arguments are the model's own text, so both ways give the same ones.

    auto       Let me see. <tool_call>{"name": "f", "arguments": {...}}</tool_call>     Hermes' format
    required   [{"name": "f", "parameters": {...}}, ...]                                 vLLM's schema
    named      {...}                                                                     the arguments
"""

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headrace.net.tool_fields import ToolChoice, ToolUse

OPENING, CLOSING = "<tool_call>", "</tool_call>"

_HEAD = re.compile(
    r'\s{0,99}\{\s{0,99}"name"\s{0,99}:\s{0,99}("(?:[^"\\]|\\.){0,999}")\s{0,99},'
    r'\s{0,99}"(?:arguments|parameters)"\s{0,99}:\s{0,99}(?=\{)',
    re.DOTALL,
)
"""What is before the arguments. Bounded, because it is looked for anew with every token."""


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


_NONE = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = _NONE
    parameters: msgspec.Raw = _NONE


def call_finder(use: ToolUse, *, early: bool) -> CallFinder:
    """`early`: calls are told while they are written, as a stream wants them."""
    match use.choice:
        case ToolChoice.AUTO:
            return MarkedCalls(use.most_calls, early=early)
        case ToolChoice.REQUIRED:
            return ListedCalls(early=early)
        case ToolChoice.NAMED:
            return NamedCall(use.name)


class _ObjectEnd:
    """Looks for the end of a JSON object, character by character."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = self._escaped = False

    def closes(self, character: str) -> bool:
        """Whether this character ends the outermost object."""
        if self._in_string:
            ends = character == '"' and not self._escaped
            self._escaped = character == "\\" and not self._escaped
            self._in_string = not ends
            return False
        self._in_string = character == '"'
        self.depth += (character in "{[") - (character in "}]")
        return self.depth == 0 and character in "}]"


class _GrowingCall:
    """One call while it is written."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.begun = False
        self._end = _ObjectEnd()
        self._seen = 0
        """Characters of the call that are dealt with: up to its arguments' end, when that has come."""
        self._ended = False

    def more(self, body: str) -> CallPart | None:
        """What is new in `body`, all there is of the call. None: nothing that could be told yet."""
        name = None
        if not self.begun:
            head = _HEAD.match(body)
            name = _read_string(head[1]) if head is not None else None
            if head is None or name is None:
                return None
            self.begun, self._seen = True, head.end()
        arguments = self._arguments(body)
        return CallPart(self.index, name, arguments) if name is not None or arguments else None

    def _arguments(self, body: str) -> str:
        start = self._seen
        while not self._ended and self._seen < len(body):
            self._ended = self._end.closes(body[self._seen])
            self._seen += 1
        return body[start : self._seen]


class _Teller:
    """Tells each call once: when it has ended or, `early`, piece by piece until then."""

    def __init__(self, most_calls: int | None, *, early: bool) -> None:
        self._most_calls = most_calls
        self._early = early
        self._call = _GrowingCall(0)

    @property
    def has_begun(self) -> bool:
        """Something of the call that is being written has been told."""
        return self._call.begun

    def grow(self, body: str, found: Found) -> None:
        """`body`: the call, as far as it has come."""
        if self._early and self._may_tell and (part := self._call.more(body)) is not None:
            found.calls.append(part)

    def end(self, body: str, found: Found) -> bool:
        """`body`: the whole call. False: it is none."""
        self.grow(body, found)
        if not self._call.begun:
            call = _read_call(body)
            if call is None or not self._may_tell:
                return call is not None
            found.calls.append(CallPart(self._call.index, *call))
        self._call = _GrowingCall(self._call.index + 1)
        return True

    @property
    def _may_tell(self) -> bool:
        return self._most_calls is None or self._call.index < self._most_calls


class MarkedCalls:
    """JSON between `<tool_call>` and `</tool_call>`, in the middle of text."""

    def __init__(self, most_calls: int | None, *, early: bool = False) -> None:
        self._teller = _Teller(most_calls, early=early)
        self._held = ""
        self._inside = False
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
            self._take(held, held, found)
        else:
            self._say(held, found)
        return found

    def _advance(self, found: Found) -> bool:
        """Handle what comes before the next mark, and the mark. False when it has not come yet."""
        mark = CLOSING if self._inside else OPENING
        before, seen, after = self._held.partition(mark)
        if not seen:
            certain = len(before) - _beginning_at_end(before, mark)
            if self._inside:
                self._teller.grow(before[:certain], found)
            else:
                self._say(before[:certain], found)
                self._held = before[certain:]
            return False
        if self._inside:
            self._take(before + mark, before, found)
        else:
            self._say(before, found)
        self._inside, self._held = not self._inside, after
        return True

    def _take(self, raw: str, body: str, found: Found) -> None:
        if self._teller.end(body, found):
            self._after_call = True
        else:
            self._say(OPENING + raw, found)

    def _say(self, text: str, found: Found) -> None:
        """The line breaks that models put between calls are no text."""
        if self._after_call:
            text = text.lstrip()
        if text:
            found.content += text
            self._after_call = False


class ListedCalls:
    """A JSON list of calls, which is all there is."""

    def __init__(self, *, early: bool = False) -> None:
        self._teller = _Teller(None, early=early)
        self._held = ""
        self._end = _ObjectEnd()

    def push(self, text: str) -> Found:
        found = Found()
        for character in text:
            if self._end.depth or character not in "[], \t\r\n":
                self._held += character
                if self._end.closes(character):
                    self._take(found)
        if self._held:
            self._teller.grow(self._held, found)
        return found

    def finish(self) -> Found:
        held = "" if self._teller.has_begun else self._held
        self._held = ""
        return Found(content=held)

    def _take(self, found: Found) -> None:
        if not self._teller.end(self._held, found):
            found.content += self._held
        self._held = ""


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
    """Name and arguments, the arguments as they are written. None for what is no call."""
    try:
        call = msgspec.json.decode(text, type=_Call)
        arguments = bytes(call.arguments if bytes(call.arguments) != b"null" else call.parameters)
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return call.name, arguments.decode()


def _read_string(text: str) -> str | None:
    """None for what is no JSON string."""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _beginning_at_end(text: str, mark: str) -> int:
    """How many characters at the end of `text` could be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
