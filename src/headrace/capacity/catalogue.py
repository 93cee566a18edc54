"""The models that ship with us, by the name that people say or the hub has.

    "llama-3.1-8b" | "meta-llama/Llama-3.1-8B-Instruct" --model_named--> ModelShape

`catalogue.toml` has them as excerpts of their config.json, so one reader serves both, and a test holds what
comes out against the published numbers of parameters.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from headrace.capacity.model_config import model_from_config
from headrace.capacity.models import ModelShape
from headrace.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Entry:
    """A shape, and what is published of it."""

    shape: ModelShape
    hub: tuple[str, ...]
    """Repositories that have it; the figures are the first one's."""
    lengths: Mapping[str, int]
    """`max_model_len` by repository, where it is another."""
    parameters: int
    active_parameters: int | None


_WELL_KNOWN = ("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3")


@cache
def catalogue() -> Mapping[str, Entry]:
    """By name, in the file's order."""
    text = (files("headrace.capacity") / "catalogue.toml").read_text(encoding="utf-8")
    return {name: _entry(name, values) for name, values in tomllib.loads(text).items()}


def _entry(name: str, values: Mapping[str, object]) -> Entry:
    hub = values["hub"]
    assert isinstance(hub, list), f"{name} has no list of repositories"
    repositories = tuple(str(each) for each in hub)
    source = f"huggingface.co/{repositories[0]}/blob/main/config.json"
    shape = replace(model_from_config(values, name), source=source)
    parameters, active = values["parameters"], values.get("active_parameters")
    assert isinstance(parameters, int), f"{name} has no number of parameters"
    lengths = values.get("lengths", {})
    assert isinstance(lengths, dict), f"{name} has no table of lengths"
    return Entry(shape, repositories, lengths, parameters, active if isinstance(active, int) else None)


def find_model(name: str) -> ModelShape | None:
    """By its name here or on a hub, with or without the organisation; None if it is not in the catalogue.

    In any case of letters.
    """
    wanted = name.lower()
    entries = catalogue()
    if (entry := entries.get(wanted)) is not None:
        return entry.shape
    for entry in entries.values():
        for hub in entry.hub:
            if wanted in (hub.lower(), hub.lower().rpartition("/")[2]):
                return replace(entry.shape, max_model_len=entry.lengths.get(hub, entry.shape.max_model_len))
    return None


def model_named(name: str) -> ModelShape:
    """Raises `BadInput` with the names that are near."""
    if (shape := find_model(name)) is not None:
        return shape
    raise BadInput(f"no model {name!r} in the catalogue", did_you_mean(name, catalogue()))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint: the nearest of `names`; where none is near those that contain it, or a few to begin with."""
    known, wanted = list(names), name.lower().rpartition("/")[2]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    near = near or [each for each in known if wanted in each][:5]
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"one of {len(known)} there, such as {', '.join(_WELL_KNOWN)}; an ORG/NAME; a config.json"
