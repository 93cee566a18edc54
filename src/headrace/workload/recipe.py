"""A recipe: a small file, YAML or JSON, from which a workload is made.

    workload: 1                                  the version of recipes
    seed: 7
    duration: 10m
    classes:
      chat:
        rate: 4                                  requests a second; with `sessions`, sessions a second
        arrivals: gamma                          constant, poisson, or gamma with a
        cv: 2                                    deviation of the gaps over their mean
        over_time: [{kind: spike, at: 5m, lasting: 30s, times: 8}]
        prompt: {median: 200, p95: 1500}
        output: {mean: 150, most: 2000}
        …

text --read_recipe--> Recipe, checked as far as can be without drawing. docs/workloads.md shows all of it.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from headrace.core.errors import BadInput
from headrace.core.slo import parse_goals
from headrace.workload.amounts import Amount, Number, draws, number_of
from headrace.workload.arrivals import Regularity
from headrace.workload.chance import stream
from headrace.workload.shapes import Shape, curve
from headrace.workload.trace import LONGEST_S

VERSION = 1
MOST_BYTES = 1 << 20
MOST_REQUESTS = 200_000_000
"""More than this is a slip of the hand."""
Said = Number | Amount


class SharedPrefix(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A beginning that prompts have in common, on top of their own tokens: a system prompt, a document."""

    tokens: int
    groups: int = 1
    """How many different ones there are."""
    skew: float = 1.0
    """Of a Zipf law: the n-th is chosen as often as n to the power of minus this. 0: all alike."""


class Tenants(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    count: int
    skew: float = 1.0
    """As of `SharedPrefix`."""


class Sessions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Conversations, or agents at work: each turn's prompt is all that was said before, and something new."""

    turns: Said
    think: Said
    """From an answer to the next turn."""
    most_context: int = 32_768
    """A session ends where its next prompt would be longer."""


class ClassRecipe(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    rate: float
    prompt: Said
    """Tokens of its own; in a session, what each turn adds."""
    output: Said
    arrivals: Regularity = Regularity.POISSON
    cv: float | None = None
    over_time: tuple[Shape, ...] = ()
    priority: int = 0
    slo: str = ""
    """Its goals, as in `ttft 500ms, itl 60ms`."""
    shared_prefix: SharedPrefix | None = None
    tenants: Tenants | None = None
    sessions: Sessions | None = None


class Recipe(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    workload: int
    duration: Number
    """Requests are due in [0, duration)."""
    classes: dict[str, ClassRecipe]
    seed: int = 0
    prefix_block_tokens: int = 64
    token_time: Number = 0.02
    """What a token of an answer is taken to last, for when a session's next turn is due."""

    @property
    def duration_s(self) -> float:
        return number_of(self.duration)

    @property
    def slo(self) -> str:
        return "; ".join(f"{name}: {each.slo}" for name, each in self.classes.items() if each.slo)


def read_recipe(path: Path) -> Recipe:
    """Raises `BadInput` with the place that is wrong."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise BadInput(f"{path} is larger than {MOST_BYTES} bytes", "a recipe is a small file")
    try:
        said = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadInput(f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    return recipe_of(said, str(path))


def recipe_of(said: Any, whose: str) -> Recipe:
    """Of what a YAML or JSON file holds. Raises `BadInput`."""
    if not isinstance(said, dict) or "workload" not in said:
        raise BadInput(
            f"{whose} is no recipe: `workload: {VERSION}` is missing", "`--example` shows a recipe"
        )
    if said["workload"] != VERSION:
        raise BadInput(f"{whose}: recipe version {said['workload']!r}; this headrace reads version {VERSION}")
    try:
        recipe = msgspec.convert(said, Recipe)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(f"{whose}: {error}", "`--example` shows a recipe") from error
    check(recipe, whose)
    return recipe


def changed(recipe: Recipe, *, seed: int | None, duration_s: float | None, times: float) -> Recipe:
    """The same with another seed or duration where one is given, `times` every rate. Raises `BadInput`."""
    classes = {name: replace(each, rate=each.rate * times) for name, each in recipe.classes.items()}
    other = replace(
        recipe,
        seed=recipe.seed if seed is None else seed,
        duration=recipe.duration if duration_s is None else duration_s,
        classes=classes,
    )
    check(other, "the recipe")
    return other


def check(recipe: Recipe, whose: str) -> None:
    """Raises `BadInput` for numbers that make no workload."""
    place = "duration"
    try:
        if not 0 < recipe.duration_s <= LONGEST_S:
            raise BadInput(
                f"{whose}: duration is {recipe.duration_s:g} s; it must be more than 0, at most {LONGEST_S:g}"
            )
        place = "token_time"
        number_of(recipe.token_time)
        expected = 0.0
        for name, each in recipe.classes.items():
            place = f"class {name}"
            _check_numbers(each, recipe)
            expected += curve(each.rate, recipe.duration_s, each.over_time).expected
        place = "slo"
        parse_goals(recipe.slo)
    except ValueError as error:
        raise BadInput(f"{whose}, {place}: {error}") from error
    if not expected:
        raise BadInput(f"{whose}: no request is ever due", "give at least one class a rate")
    if expected > MOST_REQUESTS:
        raise BadInput(f"{whose}: about {expected:.3g} requests would be due; {MOST_REQUESTS} are the limit")


def _check_numbers(each: ClassRecipe, recipe: Recipe) -> None:
    """Raises `ValueError`."""
    if (each.cv is not None) != (each.arrivals is Regularity.GAMMA):
        raise ValueError(
            f"arrivals are {each.arrivals.value} and cv is {each.cv}: cv belongs to gamma, which needs it"
        )
    if each.cv is not None and not 0.05 <= each.cv <= 20:
        raise ValueError(f"cv is {each.cv:g}; it must be 0.05 to 20")
    chance = stream(0, "check")
    for amount in (
        each.prompt,
        each.output,
        *((each.sessions.turns, each.sessions.think) if each.sessions else ()),
    ):
        next(draws(amount, chance))
    block = recipe.prefix_block_tokens
    if block < 1:
        raise ValueError(f"prefix_block_tokens is {block}")
    if shared := each.shared_prefix:
        if shared.tokens < 1 or shared.tokens % block:
            raise ValueError(
                f"{shared.tokens} shared tokens are no multiple of prefix_block_tokens, {block}: "
                "sharing would not be exact"
            )
        _check_group("groups of shared_prefix", shared.groups, shared.skew)
    if each.tenants:
        _check_group("tenants", each.tenants.count, each.tenants.skew)


def _check_group(what: str, count: int, skew: float) -> None:
    if not 1 <= count <= 1_000_000 or not 0 <= skew <= 10:
        raise ValueError(f"{count} {what} with skew {skew:g}; it must be 1 to 1,000,000 and 0 to 10")
