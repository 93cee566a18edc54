"""A server's settings as its version takes them: what was given, else that version's default."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence, Value
from headrace.diagnose.flag_facts import NEWEST, flag_facts
from headrace.diagnose.flag_history import Release


@dataclass(frozen=True, slots=True)
class Settings:
    e: Evidence

    @property
    def release(self) -> Release:
        """An unknown version is taken for the newest."""
        return self.e.release or NEWEST

    def has(self, name: str) -> bool:
        return name in self.e.flags

    def given(self, name: str) -> float | None:
        return self.e.flag(name)

    def number(self, name: str) -> float:
        """Given, or the default. Raises `KeyError` for a flag without one in the table."""
        given = self.e.flag(name)
        return flag_facts().default(name, self.release) if given is None else given

    def text(self, name: str) -> str:
        return str(self.e.flags[name].value).lower() if self.has(name) else ""

    def is_on(self, name: str) -> bool:
        """A switch that was given and not turned off."""
        return self.e.is_on(name)

    def is_off(self, name: str) -> bool:
        """A switch that was turned off."""
        return self.has(name) and not self.e.is_on(name)

    def is_in_force(self, name: str) -> bool:
        """A switch that was given, or that is on by default."""
        return self.e.is_on(name) if self.has(name) else flag_facts().default(name, self.release) > 0

    def part(self, name: str, key: str) -> Value | None:
        """A key of a flag whose value is a table, in JSON or Python, or given after a dot; None if absent."""
        dotted = self.e.flags.get(f"{name}.{key}") or self.e.flags.get(f"{name}.{key.replace('_', '-')}")
        value = dotted.value if dotted else _table(self.text_as_written(name)).get(key)
        return float(value) if isinstance(value, bool | int | float) else str(value) if value else None

    def text_as_written(self, name: str) -> str:
        return str(self.e.flags[name].value) if self.has(name) else ""


def _table(text: str) -> Mapping[str, object]:
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    return {}
