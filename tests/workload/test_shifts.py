"""A shift is told from chance, whoever depends on whom; and what is said follows from the figures."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.workload.columns import Columns, collect
from headrace.workload.generate import about, generate
from headrace.workload.own_form import write_workload
from headrace.workload.readers import open_trace
from headrace.workload.recipe import recipe_of
from headrace.workload.shifts import Comparison, compare
from headrace.workload.two_samples import Sample, holm, kolmogorov_smirnov, ks_distance

CHAT = {"rate": 4, "prompt": {"median": 200, "p95": 3000}, "output": {"mean": 100}}
SESSIONS = {"turns": {"mean": 8}, "think": 3}
AGENT = {
    "rate": 0.1,
    "prompt": {"mean": 400},
    "output": 50,
    "sessions": SESSIONS,
    "shared_prefix": {"tokens": 640},
}


def columns_of(folder: Path, seed: int, **classes: dict[str, Any]) -> Columns:
    recipe = recipe_of({"workload": 1, "duration": "10m", "seed": seed, "classes": classes}, "a test")
    path = folder / f"{seed}.jsonl"
    write_workload(path, about(recipe), generate(recipe))
    with open_trace(path) as stream:
        return collect(stream)


def shifted(comparison: Comparison) -> set[str]:
    return {shift.name for shift in comparison.shifts if shift.shifted}


@pytest.mark.slow
def test_two_drawings_of_one_recipe_seldom_differ_beyond_chance(tmp_path: Path) -> None:
    """Turns of a session depend on one another: with each counted for itself, most pairs here "shifted"."""
    drawn = [columns_of(tmp_path, seed, chat=CHAT, agent=AGENT) for seed in range(12)]
    wrong = [shifted(compare(a, b)) for place, a in enumerate(drawn) for b in drawn[place + 1 :]]
    assert len(wrong) == 66
    assert sum(map(bool, wrong)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "names", "words"),
    [
        ({"rate": 6}, {"rate"}, "1.5. times the rate|1.4. times the rate"),
        ({"output": {"mean": 160}}, {"output mean", "output P95"}, "Answers are longer"),
        (
            {"prompt": {"median": 200, "p95": 9000}},
            {"prompt mean", "prompt P95", "long prompts of tokens"},
            "More of every step is long prompts",
        ),
    ],
)
def test_what_changed_is_found_and_nothing_else(
    tmp_path: Path, change: dict[str, Any], names: set[str], words: str
) -> None:
    comparison = compare(columns_of(tmp_path, 1, chat=CHAT), columns_of(tmp_path, 2, chat=CHAT | change))
    assert shifted(comparison) == names
    assert any(re.search(words, sentence) for sentence in comparison.consequences)


@pytest.mark.slow
def test_less_reuse_and_another_mix_are_found(tmp_path: Path) -> None:
    alone = AGENT | {"sessions": SESSIONS | {"turns": 1}, "rate": 0.8}
    comparison = compare(
        columns_of(tmp_path, 1, agent=AGENT), columns_of(tmp_path, 2, agent=alone, chat=CHAT)
    )
    assert {"prefix reuse", "share of agent", "share of chat"} <= shifted(comparison)
    spared = next(each for each in comparison.consequences if "cache can spare" in each)
    now, before = re.findall(r"(\d+)%", spared)
    assert int(now) < int(before)


def test_of_a_few_requests_nothing_is_said(tmp_path: Path) -> None:
    few = columns_of(tmp_path, 1, chat=CHAT | {"rate": 0.01})
    assert shifted(compare(few, columns_of(tmp_path, 2, chat=CHAT))) == set()


def sample(values: list[float], clusters: list[int] | None = None) -> Sample:
    return Sample(np.array(values), np.array(range(len(values)) if clusters is None else clusters))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30)
)
def test_the_distance_is_the_largest_gap_of_the_two_curves(a: list[int], b: list[int]) -> None:
    gaps = [abs(sum(x <= v for x in a) / len(a) - sum(x <= v for x in b) / len(b)) for v in range(10)]
    assert ks_distance(np.array(a, float), np.array(b, float)) == pytest.approx(max(gaps))


def test_the_probability_is_that_of_published_tables() -> None:
    """Critical values at large n: 1.36 / sqrt(n) at 5 %, 1.63 at 1 % (Smirnov 1948)."""
    size = 20_000
    for factor, wanted in ((1.358, 0.05), (1.628, 0.01)):
        shift = round(factor * np.sqrt(2 / size) * size)
        a = sample([float(value) for value in range(size)])
        b = sample([float(value + shift) for value in range(size)])
        assert kolmogorov_smirnov(a, b) == pytest.approx(wanted, rel=0.05)


def test_copies_of_a_request_count_once() -> None:
    values = [float(value % 97) for value in range(400)]
    copied = sample(values * 5, [place % 400 for place in range(2000)])
    assert sample(values).effective_size == pytest.approx(400)
    assert copied.effective_size == pytest.approx(400)


def test_holms_correction_is_that_of_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
