"""Lines that name their own cause, from data/messages.toml: what is printed when something is wrong.

log line -> readers.log -> Event(kind) -> rules.messages: a finding, where the line says enough
                                       -> judgement: a suspicion, where it is printed without harm too
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headrace.diagnose.finding import Label

SAYS_ENOUGH = 1.8
"""Weight from which a line is a finding by itself."""


@dataclass(frozen=True, slots=True)
class Message:
    """`needs`: "speed" where it counts only if speed is asked after, "unready" only before the server is."""

    kind: str
    any: tuple[str, ...]
    pattern: str
    label: Label
    also: tuple[Label, ...]
    weight: float
    fatal: bool
    needs: str
    says: str
    change: str


@cache
def messages() -> Mapping[str, Message]:
    """By kind."""
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/messages.toml").read_text("utf-8"))
    found = [
        Message(
            row["kind"],
            tuple(row["any"]),
            row.get("pattern") or "|".join(re.escape(text) for text in row["any"]),
            Label(row["label"]),
            tuple(Label(label) for label in row.get("also", ())),
            float(row["weight"]),
            row.get("fatal", False),
            row.get("needs", ""),
            row["says"],
            row.get("change", ""),
        )
        for row in table["message"]
    ]
    return {message.kind: message for message in found}
