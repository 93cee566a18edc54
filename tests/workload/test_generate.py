"""A made workload is what its recipe says: as many, as regular, as long, as shared; seeded."""

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.workload.amounts import number_of
from headrace.workload.arrivals import RateCurve, Regularity, arrivals, gaps_of
from headrace.workload.chance import stream
from headrace.workload.example import EXAMPLE
from headrace.workload.features import Timing, timing_of
from headrace.workload.generate import about, generate
from headrace.workload.own_form import workload_lines
from headrace.workload.recipe import Recipe, read_recipe, recipe_of
from headrace.workload.shapes import Day, Points, Ramp, Spike, curve
from headrace.workload.trace import TraceRequest


def recipe(duration: Any = 60, seed: int = 0, **one: Any) -> Recipe:
    said = {"rate": 5, "prompt": 100, "output": 10} | one
    return recipe_of({"workload": 1, "duration": duration, "seed": seed, "classes": {"chat": said}}, "a test")


def made(*args: Any, **kwargs: Any) -> list[TraceRequest]:
    return list(generate(recipe(*args, **kwargs)))


def timing(requests: list[TraceRequest]) -> Timing:
    return timing_of(np.array([round(request.due_at * 1e9) for request in requests]))


def as_bytes(made_of: Recipe) -> bytes:
    return b"".join(workload_lines(about(made_of), generate(made_of)))


@pytest.mark.parametrize("seed", range(5))
def test_poisson_is_poisson(seed: int) -> None:
    """guidellm's is not (index of dispersion 6.8), vllm bench's has its last arrival moved to N / rate."""
    requests = made(1000, seed, rate=20)
    said = timing(requests)
    assert len(requests) >= 2000
    assert said.dispersion == pytest.approx(1, abs=0.1)
    assert said.autocorrelation == pytest.approx(0, abs=0.1)
    assert said.gap_cv == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_the_number_of_arrivals_varies_as_a_poisson_number_does() -> None:
    """Rescaled to end at N / rate, or drawn from one stream by many workers, it would not."""
    counts = [len(made(100, seed, rate=10)) for seed in range(60)]
    assert np.mean(counts) == pytest.approx(1000, abs=4 * math.sqrt(1000 / 60))
    assert 0.6 < np.var(counts) / 1000 < 1.6


@pytest.mark.slow
@given(st.floats(0.2, 4), st.integers(0, 1000))
def test_gamma_has_the_asked_rate_and_variation(cv: float, seed: int) -> None:
    requests = made(600, seed, rate=10, arrivals="gamma", cv=cv)
    assert len(requests) == pytest.approx(6000, abs=5 * cv * math.sqrt(6000) + 1)
    # The deviation of such an estimate: cv * sqrt((2 + 9 cv^2) / 4 n), roughly, for heavy tails.
    assert timing(requests).gap_cv == pytest.approx(cv, rel=5 * math.sqrt((2 + 9 * cv * cv) / 24_000))


def test_constant_arrivals_are_as_many_as_asked_and_equally_far_apart() -> None:
    due = [request.due_at for request in made(10, rate=8, arrivals="constant")]
    assert due == [number / 8 for number in range(80)]


@pytest.mark.slow
def test_nothing_happens_more_often_near_the_start() -> None:
    """Of a bursty process too: a start within a gap is likelier in a long one."""
    early = [
        sum(request.due_at < 1 for request in made(2, seed, arrivals="gamma", cv=3)) for seed in range(600)
    ]
    late = [
        sum(request.due_at >= 1 for request in made(2, seed, arrivals="gamma", cv=3)) for seed in range(600)
    ]
    spread = math.sqrt((np.var(early) + np.var(late)) / 600)
    assert np.mean(early) == pytest.approx(5, abs=4 * spread)
    assert np.mean(late) == pytest.approx(5, abs=4 * spread)


@st.composite
def curves(draw: st.DrawFn) -> RateCurve:
    at_s, knots = 0.0, list[tuple[float, float]]()
    for _ in range(draw(st.integers(2, 6))):
        knots.append((at_s, draw(st.floats(0, 50))))
        if draw(st.booleans()):
            knots.append((at_s, draw(st.floats(0, 50))))
        at_s += draw(st.floats(0.1, 100))
    return RateCurve.through(knots)


@given(curves(), st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_a_curve_is_run_through_backwards(curve_drawn: RateCurve, shares: list[float]) -> None:
    """`when` is the inverse of the area under the rate, and never runs backwards."""
    if curve_drawn.expected == 0:
        return
    passed = sorted(share * curve_drawn.expected for share in shares)
    instants = [curve_drawn.when(each) for each in passed]
    assert instants == sorted(instants)
    for at_s, wanted in zip(instants, passed, strict=True):
        assert area(curve_drawn, at_s) == pytest.approx(wanted, rel=1e-6, abs=1e-6 * curve_drawn.expected)


def area(under: RateCurve, until_s: float) -> float:
    total = 0.0
    for (start_s, low), (end_s, high) in pairwise(under.knots):
        if start_s >= until_s or end_s == start_s:
            continue
        end = min(end_s, until_s)
        at_end = low + (high - low) * (end - start_s) / (end_s - start_s)
        total += (end - start_s) * (low + at_end) / 2
    return total


def test_ramps_spikes_days_and_points_have_the_areas_they_should() -> None:
    assert curve(2, 100, []).expected == pytest.approx(200)
    assert curve(2, 100, [Ramp(0, 1)]).expected == pytest.approx(100)
    assert curve(2, 100, [Spike(at=50, lasting="10s", times=5)]).expected == pytest.approx(280)
    assert curve(2, 86_400, [Day(swing=0.9)]).expected == pytest.approx(172_800, rel=1e-3)
    assert curve(1, 10, [Points(((0, 0.0), (5, 2.0)))]).expected == pytest.approx(15)
    assert curve(2, 100, [Ramp(0, 1), Spike(50, 50, 2)]).expected == pytest.approx(25 + 150)


def test_a_spike_is_where_it_should_be() -> None:
    due = [
        r.due_at
        for r in made(100, rate=10, over_time=[{"kind": "spike", "at": 50, "lasting": 10, "times": 10}])
    ]
    within = sum(50 <= at < 60 for at in due)
    assert within == pytest.approx(1000, abs=130)
    assert len(due) - within == pytest.approx(900, abs=120)


def test_lengths_follow_what_was_asked() -> None:
    lengths = np.array([r.prompt_tokens for r in made(2000, prompt={"median": 200, "p95": 1500})])
    assert np.median(lengths) == pytest.approx(200, rel=0.1)
    assert np.percentile(lengths, 95) == pytest.approx(1500, rel=0.15)
    uniform = [r.prompt_tokens for r in made(400, prompt={"uniform": [3, 5]})]
    assert {length: uniform.count(length) / len(uniform) for length in (3, 4, 5)} == pytest.approx(
        {3: 1 / 3, 4: 1 / 3, 5: 1 / 3}, abs=0.05
    )
    capped = [r.output_tokens for r in made(400, output={"mean": 100, "least": 50, "most": 120})]
    assert (min(capped), max(capped)) == (50, 120)
    listed = [r.output_tokens for r in made(400, output={"values": {64: 3, 512: 1}})]
    assert listed.count(64) / len(listed) == pytest.approx(0.75, abs=0.05)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(EXAMPLE)
    whole = read_recipe(path)
    assert as_bytes(whole) == as_bytes(read_recipe(path))
    assert as_bytes(whole) != as_bytes(recipe_of({**_said(), "seed": 8}, "a test"))


def test_the_bytes_of_a_seed_never_change() -> None:
    """Whoever changes this breaks every workload that somebody wrote down as a recipe."""
    requests = made(2, 10, rate=2, arrivals="gamma", cv=2, prompt={"median": 50, "p95": 200})
    assert [(round(r.due_at * 1e9), r.prompt_tokens) for r in requests] == STORED


STORED = [(58120654, 242), (59863153, 98), (65450046, 23), (115448265, 65), (218640596, 61)]


def _said() -> dict[str, Any]:
    one = {"rate": 5, "prompt": {"mean": 100}, "output": 10}
    return {"workload": 1, "duration": 60, "seed": 0, "classes": {"chat": one, "docs": one | {"rate": 1}}}


def of_class(requests: list[TraceRequest], name: str) -> list[TraceRequest]:
    return [request for request in requests if request.request_class == name]


def test_changing_one_class_leaves_the_others_and_a_longer_duration_appends() -> None:
    said = _said()
    before = list(generate(recipe_of(said, "a test")))
    said["classes"]["docs"]["rate"] = 9
    after = list(generate(recipe_of(said, "a test")))
    assert of_class(after, "chat") == of_class(before, "chat")
    longer = list(generate(recipe_of({**said, "duration": 90}, "a test")))
    assert [request for request in longer if request.due_at < 60] == after


@given(
    st.integers(0, 1000),
    st.fixed_dictionaries(
        {"turns": st.sampled_from([1, 3, {"mean": 4}]), "think": st.sampled_from([0.5, "8s", {"mean": 3}])},
        optional={"most_context": st.integers(200, 2000)},
    ),
    st.booleans(),
)
def test_a_turn_begins_with_all_that_was_said_before(
    seed: int, sessions: dict[str, Any], shared: bool
) -> None:
    prefix = {"tokens": 128, "groups": 3} if shared else None
    requests = made(
        100, seed, rate=0.5, prompt={"mean": 60}, output={"mean": 40}, sessions=sessions, shared_prefix=prefix
    )
    assert [r.due_at for r in requests] == sorted(r.due_at for r in requests)
    assert all(r.due_at < 100 for r in requests)
    by_session = defaultdict[str, list[TraceRequest]](list)
    for request in requests:
        assert len(request.prefix_ids) == request.prompt_tokens // 64
        by_session[request.session].append(request)
    for turns in by_session.values():
        assert turns[0].think_s is None
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.prefix_ids[: len(before.prefix_ids)] == before.prefix_ids
            assert after.think_s is not None
            assert after.due_at == pytest.approx(before.due_at + 0.02 * before.output_tokens + after.think_s)
            assert after.prompt_tokens <= sessions.get("most_context", 32_768)
    own = [set(turns[-1].prefix_ids[2 if shared else 0 :]) for turns in by_session.values()]
    assert sum(map(len, own)) == len(set[int]().union(*own)), "no session has another's blocks"


def test_shared_prefixes_and_tenants_are_as_skewed_as_asked() -> None:
    requests = made(
        1000, shared_prefix={"tokens": 64, "groups": 3, "skew": 0}, tenants={"count": 4, "skew": 1}
    )
    groups = [request.prefix_ids for request in requests]
    assert {len(ids) for ids in groups} == {1}
    for ids in set(groups):
        assert groups.count(ids) / len(groups) == pytest.approx(1 / 3, abs=0.04)
    tenants = [request.tenant for request in requests]
    weights = [1 / place for place in (1, 2, 3, 4)]
    for place, weight in enumerate(weights, start=1):
        assert tenants.count(f"chat-{place}") / len(tenants) == pytest.approx(weight / sum(weights), abs=0.04)


def test_arrivals_of_a_curve_without_area_are_none() -> None:
    gaps = gaps_of(Regularity.POISSON, 1, stream(0, "x"))
    assert list(arrivals(RateCurve.through([(0, 0), (10, 0)]), gaps)) == []


@pytest.mark.parametrize(
    ("said", "seconds"), [("1h30m", 5400), ("250ms", 0.25), ("8s", 8), (3, 3), ("2.5", 2.5)]
)
def test_times_are_read_as_people_write_them(said: str | int, seconds: float) -> None:
    assert number_of(said) == seconds


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"duration": 0}, "duration is 0 s"),
        ({"duration": "soon"}, "duration: 'soon' is neither a number nor a time"),
        ({"duration": math.nan}, "duration: nan is no number"),
        ({"rate": -1}, "class chat: -1 requests a second"),
        ({"rate": 0}, "no request is ever due"),
        ({"rate": 1e9}, "requests would be due; 200000000 are the limit"),
        ({"rate": "many"}, r"Expected `float`, got `str` - at `\$.classes\[...\].rate`"),
        ({"rates": 1}, "unknown field `rates`"),
        ({"cv": 2}, "cv belongs to gamma"),
        ({"arrivals": "gamma"}, "cv is None"),
        ({"arrivals": "gamma", "cv": 1000}, "cv is 1000"),
        ({"prompt": {"median": 5}}, "write one of a number"),
        ({"prompt": {"mean": -5}}, "-5 is not more than 0"),
        ({"prompt": {"median": 5, "p95": 1}}, "p95 is 1, below the median 5"),
        ({"prompt": {"values": {}}}, "weights of .* say nothing"),
        ({"output": {"mean": 5, "least": 9, "most": 1}}, "least is 9 and most 1"),
        ({"shared_prefix": {"tokens": 100}}, "100 shared tokens are no multiple of prefix_block_tokens, 64"),
        ({"tenants": {"count": 0}}, "0 tenants with skew 1"),
        ({"slo": "ttft soon"}, "'ttft soon' is no goal"),
        ({"over_time": [{"kind": "ramp", "at_start": -1, "at_end": 1}]}, "-5 requests a second"),
        ({"over_time": [{"kind": "day", "swing": 0.5, "period": "1us"}]}, "neither a number nor a time"),
        ({"over_time": [{"kind": "day", "swing": 0.5, "period": 1e-9}]}, "too short"),
        ({"over_time": [{"kind": "points", "through": [[5, 1], [5, 2]]}]}, "each later than the one before"),
        ({"over_time": [{"kind": "wave"}]}, "Invalid value 'wave'"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused_with_the_place(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        recipe(**change)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no recipe: `workload: 1` is missing"),
        ("workload: 2", "recipe version 2"),
        ("workload: [", "neither YAML nor JSON"),
        ("a: &a [*a]\nworkload: 1", "missing required field|Object"),
        ("\x00", "neither YAML nor JSON"),
        ("workload: 1\nduration: 1m\nclasses: {}", "no request is ever due"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        read_recipe(path)
