"""For each label what would confirm it and what helps if it is so, from data/causes.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headrace.diagnose.finding import Label


@dataclass(frozen=True, slots=True)
class Cause:
    confirm: str
    change: str


@cache
def causes() -> Mapping[Label, Cause]:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/causes.toml").read_text("utf-8"))
    return {Label(row["label"]): Cause(row["confirm"], row["change"]) for row in table["cause"]}
