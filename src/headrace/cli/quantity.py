"""Numbers as people type them on a command line: `2G`, `8k`, `1.5M`; durations: `6m`, `90s`, `1h30m`."""

import math
import re
from typing import Any

import click

from headrace.workload.slices import MOST_TOKENS

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
_FORM = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")


class Quantity(click.ParamType[int]):
    """A whole number, with vLLM's suffixes: k is 1000 and K is 1024, and so on."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if (match := _FORM.fullmatch(str(value))) is None:
            self.fail(f"{value!r} is not a number such as 2048, 8k (8000) or 2G (2 times 1024^3)", param, ctx)
        amount = float(match[1]) * _UNITS[match[2]] if "." in match[1] else int(match[1]) * _UNITS[match[2]]
        return int(amount)


QUANTITY = Quantity()


def token_range(said: str) -> tuple[int, int]:
    """`30-90`, or `64` for always the same. Raises `ValueError`."""
    fewest, _, most = said.partition("-")
    numbers = (fewest, most or fewest)
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"{said!r} is neither a number of tokens, as 64, nor a range, as 30-90")
    if max(map(len, numbers)) > len(str(MOST_TOKENS)) or max(map(int, numbers)) > MOST_TOKENS:
        raise ValueError(f"{said[:24]!r} is more than any request has; {MOST_TOKENS:,} tokens are the limit")
    return int(numbers[0]), int(numbers[1])


AUTO = "auto"


class Length(click.ParamType[int | str]):
    """A number of tokens; or `auto` (vLLM also says -1): the most that fits."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return AUTO if str(value).lower() in {AUTO, "-1"} else QUANTITY.convert(value, param, ctx)


LENGTH = Length()


class Seconds(click.ParamType[float]):
    """A finite number of seconds, 0 or more."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds >= 0):
            self.fail(f"{value!r} is not a number of seconds, 0 or more", param, ctx)
        return seconds


SECONDS = Seconds()


class Duration(click.ParamType[float]):
    """`6m`, `90s`, `1h30m`; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None or not any(match.groups()):
            self.fail(f"{value!r} is no duration; write 6m, 90s or 1h30m", param, ctx)
        hours, minutes, rest = (float(group or 0) for group in match.groups())
        seconds = 3600 * hours + 60 * minutes + rest
        if not math.isfinite(seconds):
            self.fail("that is for ever; write 6m, 90s or 1h30m", param, ctx)
        return seconds
