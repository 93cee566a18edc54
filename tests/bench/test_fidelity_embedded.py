"""What the embedded target of `bench.fidelity` is made of, without serving anything."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.fidelity.comparison import kendall_tau
from bench.fidelity.record import Record, Seen
from bench.fidelity.scenarios import FULL, MIXED, RANKED, SHARED, SHORT, as_trace, requests
from headrace.core.cost import Residual
from headrace.executor.cost import FittedCost
from headrace.executor.scripted import ScriptedTokenizer


def test_kendalls_tau_counts_pairs_in_order() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert kendall_tau([1, 2, 3, 4], [40, 30, 20, 10]) == -1.0
    assert kendall_tau([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(4 / 6)


def test_a_higher_rate_squeezes_the_same_requests_together() -> None:
    slow, fast = requests(MIXED, 1.0, 30.0, 3), requests(MIXED, 2.0, 30.0, 3)
    assert [arrival.ask for arrival in fast[: len(slow)]] == [arrival.ask for arrival in slow]
    assert fast[3].due_at == pytest.approx(slow[3].due_at / 2)


def test_prefix_ids_are_equal_just_where_the_tokens_are() -> None:
    arrivals = requests(SHARED, 2.0, 20.0, 1)
    traced = as_trace(arrivals, ScriptedTokenizer(), 32)
    shared = {one.prefix_ids[8] for one in traced}
    assert len(shared) <= 4 < len({one.prefix_ids[-1] for one in traced})
    assert all(len(one.prefix_ids) == one.prompt_tokens // 32 for one in traced)
    alone = as_trace(requests(SHORT, 2.0, 20.0, 1), ScriptedTokenizer(), 32)
    assert len({one.prefix_ids[2] for one in alone}) == len(alone)


def test_scenarios_differ_and_have_names_of_their_own() -> None:
    assert len({str(scenario) for scenario in FULL}) == len(FULL)
    assert len({str(sorted(budgets.items())) for budgets in RANKED}) == len(RANKED) <= 12


def test_a_record_goes_on_where_it_ended_and_counts_no_disturbed_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    quiet = Seen(0.1, 0.2, 0.03, 90.0, 0.0, pace=1.01, others_cores=0.02)
    Record(path).add("a point", quiet)
    Record(path).add("a point", replace(quiet, ttft_p50_s=9.0, others_cores=0.7))
    Record(path).add("another", quiet)
    again = Record(path)
    assert again.quiet("a point") == [quiet]
    assert again.disturbed == 1
    assert again.cost() is None
    again.keep_cost(FittedCost({"step": 1e6}, Residual(1, 0.0, 0.0), {}))
    assert Record(path).cost() == FittedCost({"step": 1e6}, Residual(1, 0.0, 0.0), {})
