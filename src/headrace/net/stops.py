"""Finds stop strings in text that comes in pieces.

    pushed     "Hello wo" "rld, bye"       stop string "world"
    delivered  "Hello "   ""               the "wo" is held back until it is clear what it is

What is delivered does not depend on where the pieces are cut: every stop string is matched
character by character (Knuth, Morris and Pratt), so tokens may end anywhere in it.
"""

from collections.abc import Sequence


class StopFinder:
    """Holds back what could be the beginning of a stop string; the first one to complete wins."""

    def __init__(self, stops: Sequence[str], *, delivers_stop: bool = False) -> None:
        """`delivers_stop`: the stop string is part of what is delivered, so nothing is held back."""
        self._needles = [_Needle(stop) for stop in stops]
        self._delivers_stop = delivers_stop
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Text that may be delivered now. After a match: the rest before it, and `found` is set."""
        for place, character in enumerate(text):
            complete = [needle.text for needle in self._needles if needle.advance(character)]
            if complete:
                self.found = max(complete, key=len)
                seen = self._held + text[: place + 1]
                self._held = ""
                return seen if self._delivers_stop else seen[: -len(self.found)]
        seen = self._held + text
        held = max((needle.matched for needle in self._needles), default=0)
        if self._delivers_stop:
            held = 0
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]

    def rest(self) -> str:
        """What was held back and turned out to be no stop string, once the text has ended."""
        held, self._held = self._held, ""
        return held


class _Needle:
    """One stop string and how much of it the text ends with."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _fallbacks(text)

    def advance(self, character: str) -> bool:
        """One more character of text. True when it completes the stop string."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """For each prefix of `text`: the longest shorter prefix that it also ends with."""
    lengths = [0] * len(text)
    matched = 0
    for place in range(1, len(text)):
        while matched and text[matched] != text[place]:
            matched = lengths[matched - 1]
        if text[matched] == text[place]:
            matched += 1
        lengths[place] = matched
    return lengths
