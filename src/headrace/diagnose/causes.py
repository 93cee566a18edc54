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
def causes(engine: str = "") -> Mapping[Label, Cause]:
    """Another engine's where that is known, without vLLM's names."""
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/causes.toml").read_text("utf-8"))
    own = {} if engine in {"", "vllm"} else {row["label"]: row for row in table["elsewhere"]}
    rows = ({**row, **own.get(row["label"], {})} for row in table["cause"])
    return {Label(row["label"]): Cause(row["confirm"], row["change"]) for row in rows}
