"""What the vLLM target of `bench.fidelity` is made of, without vLLM."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.fidelity.record import Seen
from bench.fidelity.vllm import SETTINGS, Bench, Record, numbers, rank_name, summary
from headrace.cli.costs import save
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
    names = [rank_name(setting) for setting in SETTINGS]
    names += [str(scenario) for setting in SETTINGS for scenario in setting.points]
    assert len(set(names)) == len(names)
    assert len(SETTINGS) == 12


def test_parts_join_in_one_record(tmp_path: Path) -> None:
    Record(tmp_path / "r").add("a", Seen(1.0, 2.0, 0.1, 20.0, 0.0))
    Record(tmp_path / "r").add("b", Seen(3.0, 4.0, 0.1, 20.0, 0.0))
    Record(tmp_path / "r").add("a", Seen(1.5, 2.0, 0.1, 20.0, 1.0, pace=1.1))
    assert [seen.ttft_p50_s for seen in Record(tmp_path / "r").measured("a")] == [1.0, 1.5]
    assert Record(tmp_path / "r").measured("c") == []


@pytest.mark.slow
@pytest.mark.model
def test_everything_is_predicted_before_and_compared_with_what_was_measured(tmp_path: Path) -> None:
    bench = Bench(Record(tmp_path))
    save(COST, bench.record.cost_file)
    bench.predict()
    assert summary(bench) == {"points": 0, "settings_ranked": 0, "kendall_tau": None}
    for setting in SETTINGS[:4]:
        bench.record.add(rank_name(setting), bench.record.predicted(rank_name(setting)))
        for scenario in setting.points:
            bench.record.add(str(scenario), bench.record.predicted(str(scenario)))
    result = summary(Bench(Record(tmp_path)))
    assert result["median_error_pct"] == result["spread_pct"] == 0.0
    assert result["settings_ranked"] == 4
    # A tenth faster than predicted in all runs of one point is an error of a ninth or so.
    scenario = SETTINGS[1].points[0]
    said = bench.record.predicted(str(scenario))
    faster = replace(said, ttft_p50_s=0.8 * said.ttft_p50_s, ttft_p95_s=0.8 * said.ttft_p95_s)
    bench.record.add(str(scenario), faster)
    result = summary(Bench(Record(tmp_path)))
    assert isinstance(result["worst_error_pct"], float)
    assert result["worst_error_pct"] > 10.0
