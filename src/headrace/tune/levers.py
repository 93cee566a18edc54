"""Further levers, one at a time on top of what was proven, each kept only when runs show that it pays.

    Site + Demand + facts about the traffic  --further_levers-->  [Extra, ...]
    View -> next_lever -> Wanted | None          View -> levers_found -> [LeverFound, ...]

These change what the twin cannot know (a draft model's guesses, another number format, processes beside
the engine), so a run decides and not a simulation. One run that is no better than the contender's mean by 3 %
ends a lever; one that is runs again, and is kept when its later runs are better beyond noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.core.conclusion import LeverFound
from headrace.core.ports import Overrides
from headrace.core.trial import Gain, Purpose, Wanted
from headrace.tune.belief import View
from headrace.tune.evidence import grades_of, runs_of
from headrace.tune.explore import START
from headrace.tune.problem import Extra
from headrace.tune.proof import Proof, ratio_for
from headrace.tune.verdict import gain_so_far, is_beyond_noise

MOST_RUNS = 3
"""Of one lever: the first, and two that count."""
PROMISING = 0.97
"""Ratio to the contender's mean at which a first run is worth another."""
SHARED_SHARE = 0.05
"""Of the prompt tokens, beginning with which a prefix cache has something to find."""


@dataclass(frozen=True, slots=True)
class Has:
    """What only its kind of server has: policies, and further levers with their values. None: it has not."""

    policies: tuple[str, ...] = ()
    """Ways to order those who wait, to be searched in the twin; empty: leave it alone."""
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    kv_cache_dtype: str | None = None
    kv_cache_dtypes: tuple[str, ...] = ()
    """Others that it would take."""
    speculative_config: str | None = None
    """A configuration that it would take (a draft that is there); None where there is none."""
    api_server_count: int | None = None
    spare_cpus: int = 0


def further_levers(has: Has, shared_token_share: float | None) -> tuple[Extra, ...]:
    """The cheap and reversible first. `shared_token_share`: of the prompts, what others begin with, too."""
    return tuple(_levers(has, shared_token_share))


def _levers(has: Has, shared: float | None) -> Iterator[Extra]:
    if has.enable_prefix_caching is False and (shared is None or shared >= SHARED_SHARE):
        known = "unknown" if shared is None else f"{shared:.0%}"
        yield Extra(
            "prefix caching", {"enable_prefix_caching": True}, f"share of prompt tokens that repeat: {known}"
        )
    if has.enable_prefix_caching and shared is not None and shared < SHARED_SHARE:
        yield Extra(
            "no prefix caching",
            {"enable_prefix_caching": False},
            f"{shared:.0%} of the prompt tokens repeat: hashing may cost more than it finds",
        )
    if has.async_scheduling is False:
        yield Extra("async scheduling", {"async_scheduling": True}, "the next step is planned while one runs")
    for dtype in has.kv_cache_dtypes:
        if dtype != has.kv_cache_dtype:
            why = "fewer bytes a token: more requests fit; check your answers' quality too"
            yield Extra(f"KV in {dtype}", {"kv_cache_dtype": dtype}, why)
    if has.speculative_config:
        why = "several tokens a step where guesses are right"
        yield Extra("speculative decoding", {"speculative_config": has.speculative_config}, why)
    if has.api_server_count is not None and has.spare_cpus > 0:
        why = f"{has.spare_cpus} processors are idle: tokenizing beside each other"
        yield Extra("another API server", {"api_server_count": has.api_server_count + 1}, why)


def next_lever(view: View, proof: Proof | None) -> Wanted | None:
    """Each in turn, until it is decided."""
    for tried in _tried(view, proof):
        if not tried.is_decided:
            return Wanted(
                dict(tried.overrides), tried.load, Purpose.LEVER, f"{tried.extra.name}: {tried.extra.reason}"
            )
    return None


def levers_found(view: View, proof: Proof | None) -> tuple[LeverFound, ...]:
    """Those that ran."""
    return tuple(
        LeverFound(
            each.extra.name, each.extra.overrides, each.extra.reason, each.gain, each.is_kept, each.why
        )
        for each in _tried(view, proof)
        if each.runs
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One lever so far."""

    extra: Extra
    overrides: Overrides
    """With what it stands on."""
    load: float
    runs: int
    gain: Gain | None
    is_kept: bool
    is_decided: bool
    why: str


def _tried(view: View, proof: Proof | None) -> Iterator[_Tried]:
    """Each on top of those kept before it; after one that is not decided yet there is nothing to say."""
    base = dict(proof.contender) if proof is not None and proof.is_shown else dict(START)
    load = proof.load if proof is not None and proof.is_shown else view.load_at(0)
    for extra in view.problem.extras:
        tried = _try(view, extra, base, load)
        yield tried
        if not tried.is_decided:
            return
        if tried.is_kept:
            base = tried.overrides


def _try(view: View, extra: Extra, base: Overrides, load: float) -> _Tried:
    overrides = {**base, **extra.overrides}
    made = [run for run in runs_of(view.runs, overrides, load) if run.purpose is Purpose.LEVER]
    reference = _ratios(view, base, load)
    ratios = _ratios(view, overrides, load)

    def so_far(*, is_kept: bool, is_decided: bool, why: str, gain: Gain | None = None) -> _Tried:
        return _Tried(extra, overrides, load, len(made), gain, is_kept, is_decided, why)

    if not made:
        return so_far(is_kept=False, is_decided=False, why="not tried yet")
    if len(ratios) < len(made):
        return so_far(is_kept=False, is_decided=True, why="the server gave no result with it")
    mean = sum(reference) / len(reference) if reference else ratios[0]
    if ratios[0] > PROMISING * mean:
        why = f"{ratios[0] / mean:.2f} times the ratio without it"
        return so_far(is_kept=False, is_decided=True, why=why)
    gain = gain_so_far(reference, ratios[1:])
    if gain is not None and is_beyond_noise(gain):
        why = f"with 95 % confidence at most {gain.ratio_at_most:.2f} times the ratio without it"
        return so_far(is_kept=True, is_decided=True, why=why, gain=gain)
    is_over = len(made) >= MOST_RUNS
    return so_far(is_kept=False, is_decided=is_over, why="its gain is inside the noise", gain=gain)


def _ratios(view: View, overrides: Overrides, load: float) -> Sequence[float]:
    grades = grades_of(view.runs, overrides, load)
    return [ratio_for(grade, is_capacity=view.seeks_capacity) for grade in grades]
