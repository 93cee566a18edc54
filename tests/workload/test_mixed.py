import math
from collections import Counter
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.workload.mixed import LONG, SHORT, MixedWorkload
from headrace.workload.words import WORDS

QUICK = {"long_prompt_tokens": (20, 40), "short_prompt_tokens": (2, 6)}

rates = st.floats(0.1, 5.0)
seeds = st.integers(0, 1 << 64)


def of(arrivals: tuple[Arrival, ...], name: str) -> list[Arrival]:
    return [arrival for arrival in arrivals if arrival.ask.request_class == name]


@given(seeds, rates, rates)
def test_the_same_seed_gives_the_same_timetable_to_the_byte(seed: int, short: float, long: float) -> None:
    twice = [
        MixedWorkload(short_rps=short, long_rps=long, duration_s=5, seed=seed, **QUICK).arrivals()
        for _ in range(2)
    ]

    assert repr(twice[0]) == repr(twice[1])


@given(seeds, rates, rates)
def test_one_class_does_not_change_the_other(seed: int, rate: float, other: float) -> None:
    both = MixedWorkload(short_rps=rate, long_rps=other, duration_s=8, seed=seed, **QUICK).arrivals()
    short = MixedWorkload(short_rps=rate, long_rps=0, duration_s=8, seed=seed, **QUICK).arrivals()
    long = MixedWorkload(short_rps=0, long_rps=other, duration_s=8, seed=seed, **QUICK).arrivals()

    assert tuple(of(both, SHORT)) == short
    assert tuple(of(both, LONG)) == long


@given(seeds, rates)
def test_a_higher_rate_sends_the_same_requests_sooner(seed: int, rate: float) -> None:
    slow = MixedWorkload(short_rps=rate, long_rps=0, duration_s=8, seed=seed, **QUICK).arrivals()
    fast = MixedWorkload(short_rps=2 * rate, long_rps=0, duration_s=8, seed=seed, **QUICK).arrivals()

    assert [a.ask for a in fast[: len(slow)]] == [a.ask for a in slow]
    assert all(math.isclose(2 * f.due_at, s.due_at) for f, s in zip(fast, slow, strict=False))


@given(seeds, rates, rates)
def test_a_timetable_keeps_its_promises(seed: int, short: float, long: float) -> None:
    workload = MixedWorkload(short_rps=short, long_rps=long, duration_s=8, seed=seed, **QUICK)

    arrivals = workload.arrivals()

    assert all(0 <= a.due_at <= b.due_at < 8 for a, b in pairwise(arrivals))
    assert len({a.ask.request_id for a in arrivals}) == len(arrivals)
    for arrival in arrivals:
        fewest, most = workload.short_prompt_tokens
        if arrival.ask.request_class == LONG:
            fewest, most = workload.long_prompt_tokens
        assert fewest <= arrival.ask.num_prompt_words <= most
        assert 24 <= arrival.ask.max_tokens <= 48


@settings(max_examples=5)
@given(seeds)
def test_no_two_prompts_begin_alike(seed: int) -> None:
    """Else a prefix cache would make the server look faster than its users will find it."""
    workload = MixedWorkload(short_rps=300, long_rps=300, duration_s=2, seed=seed, **QUICK)

    beginnings = [tuple(a.ask.prompt.split()[:2]) for a in workload.arrivals()]

    assert len(beginnings) > 1000
    assert len(set(beginnings)) == len(beginnings)


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_are_poisson_and_come_at_their_rate(seed: int) -> None:
    """Bounds of five standard errors. The gaps' spread alone would not show repeated ones: the
    index of dispersion (variance by mean of the counts per second) and the correlation of
    neighbouring gaps do."""
    seconds, rate = 700, 5.0
    workload = MixedWorkload(short_rps=rate, long_rps=0, duration_s=seconds, seed=seed, **QUICK)
    due = [arrival.due_at for arrival in workload.arrivals()]
    gaps = [later - earlier for earlier, later in pairwise(due)]
    counts = Counter(int(at) for at in due)
    per_second = [counts[second] for second in range(seconds)]

    assert abs(len(due) / seconds - rate) < 5 * math.sqrt(rate / seconds)
    assert abs(pvariance(per_second) / fmean(per_second) - 1) < 5 * math.sqrt(2 / seconds)
    assert abs(autocorrelation(gaps)) < 5 / math.sqrt(len(gaps))
    assert abs(pvariance(gaps) / fmean(gaps) ** 2 - 1) < 5 * math.sqrt(8 / len(gaps))


def autocorrelation(gaps: list[float]) -> float:
    mean = fmean(gaps)
    return sum((a - mean) * (b - mean) for a, b in pairwise(gaps)) / sum((g - mean) ** 2 for g in gaps)


def test_the_two_classes_do_not_arrive_together() -> None:
    workload = MixedWorkload(short_rps=5, long_rps=5, duration_s=20, seed=1, **QUICK)

    due = [a.due_at for a in workload.arrivals()]

    assert len(set(due)) == len(due)


def test_documents_are_long_and_chats_are_short_unless_one_says_otherwise() -> None:
    arrivals = MixedWorkload(short_rps=2, long_rps=0.5, duration_s=20, seed=3).arrivals()

    assert {30 <= a.ask.num_prompt_words <= 90 for a in of(arrivals, SHORT)} == {True}
    assert {3000 <= a.ask.num_prompt_words <= 5000 for a in of(arrivals, LONG)} == {True}


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"short_rps": -1.5}, "-1.5"),
        ({"long_rps": math.nan}, "nan"),
        ({"short_rps": math.inf}, "inf"),
        ({"duration_s": 0.0}, "0 s"),
        ({"duration_s": -3.0}, "-3.0"),
        ({"short_rps": 0.0, "long_rps": 0.0}, "0 short and 0 long"),
        ({"short_rps": 1e6}, "6e+07"),
        ({"short_prompt_tokens": (90, 30)}, "90 to 30"),
        ({"short_prompt_tokens": (1, 30)}, "at least 2"),
        ({"long_output_tokens": (0, 30)}, "at least 1"),
    ],
)
def test_a_workload_that_cannot_be_is_refused_with_its_numbers(fields: dict[str, Any], number: str) -> None:
    with pytest.raises(BadInput) as caught:
        MixedWorkload(**fields)

    assert number in str(caught.value)


def test_a_workload_says_in_a_line_what_it_sends() -> None:
    assert MixedWorkload(long_rps=0, duration_s=30, seed=9).describe() == (
        "Poisson, 1.2/s short (30-90 prompt, 24-48 output tokens), for 30 s, seed 9"
    )


def test_words_are_distinct_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.islower() for word in WORDS)


@pytest.mark.slow
@pytest.mark.model
def test_a_word_is_a_token_of_the_built_in_model() -> None:
    tokenizer = OpenVinoTokenizer(locate("smollm2"))

    assert [word for word in WORDS if len(tokenizer.encode(f"the {word}")) != 2] == []


def test_the_timetable_of_a_seed_is_the_same_on_every_machine() -> None:
    first, second, *_ = MixedWorkload(seed=1).arrivals()

    assert (first.ask.request_id, round(first.due_at, 6), first.ask.max_tokens) == ("short-0", 0.931875, 43)
    assert (second.ask.request_id, second.ask.prompt[:30]) == ("short-1", "bill time record operation que")
