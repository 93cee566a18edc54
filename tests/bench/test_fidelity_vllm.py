"""What the vLLM target of `bench.fidelity` is made of, without vLLM."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.fidelity.comparison import ranked_name
from bench.fidelity.record import Record
from bench.fidelity.vllm import SETTINGS, Bench, numbers, summary
from headrace.core.cost import FrontEnd, Machine, Residual
from headrace.executor.cost import FittedCost

COST = FittedCost(
    {"step": 45e6, "tokens_upto_8": 1e6, "prefill_tokens": 2e6},
    Residual(30, 0.01, 0.1),
    {"by": "a test"},
    Machine("here", "smollm2", 8192, 182 * 128 * 46_080, 46_080.0, False, 128, 2048, 128),
    FrontEnd(2_000_000, 0.0, 2_000_000),
)


def test_parts_are_numbers_and_ranges_and_without_them_all_is_meant() -> None:
    assert numbers("0,2-4") == [0, 2, 3, 4]
    assert numbers("") == []
    assert numbers(None) == list(range(len(SETTINGS)))


def test_settings_and_points_have_names_of_their_own() -> None:
    names = [ranked_name(setting.budgets) for setting in SETTINGS]
    names += [str(scenario) for setting in SETTINGS for scenario in setting.scenarios]
    assert len(set(names)) == len(names)
    assert len(SETTINGS) == 12


@pytest.mark.slow
@pytest.mark.model
def test_what_the_record_holds_is_compared_with_what_its_cost_model_predicts(tmp_path: Path) -> None:
    bench, record = Bench(COST), Record(tmp_path / "runs.jsonl")
    empty = summary(bench, record)
    assert (empty["points"], empty["settings_ranked"], empty["kendall_tau"]) == (0, 0, None)
    for setting in SETTINGS[:4]:
        for point in bench.points(setting):
            assert point.predicted is not None
            record.add(point.name, point.predicted)
    result = summary(bench, record)
    assert result["median_error_pct"] == 0.0
    assert result["settings_ranked"] == 4
    assert result["spread_pct"] is None, "of single runs nothing is known"
    # A second run a fifth faster is an error of a ninth, and a spread.
    _, point = bench.points(SETTINGS[1])
    assert point.predicted is not None
    record.add(point.name, replace(point.predicted, ttft_p50_s=0.8 * point.predicted.ttft_p50_s))
    record.add(point.name, replace(point.predicted, ttft_p50_s=9.0, others_cores=0.5))
    result = summary(bench, record)
    assert result["worst_error_pct"] == pytest.approx(100 / 9, abs=0.01)
    assert result["disturbed_runs_left_out"] == 1
