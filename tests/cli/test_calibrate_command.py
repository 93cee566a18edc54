"""`headrace calibrate`: what it says, what it writes, and that `headrace simulate` reads it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.calibrate import in_words
from headrace.cli.calibrating import Calibrated, Fit, Plan, calibrate_embedded
from headrace.cli.costs import load_cost, save
from headrace.cli.main import main
from headrace.core.cost import FrontEnd, Machine, Residual
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.measure.serving import Added
from headrace.measure.steps import Cell

MACHINE = Machine("a cpu", "smollm2", 8192, 1 << 32, 46080.0, False, 32, 2048, 128)
COST = FittedCost(
    {"step": 20e6, "tokens_upto_8": 1e6, "prefill_tokens": 1e6},
    Residual(300, 0.03, 0.1),
    {"by": "a test"},
    MACHINE,
    FrontEnd(3_000_000, 5_000.5, 1_000_000),
)
CALIBRATED = Calibrated(
    COST, Added(1e6, 2e5), (Fit(Cell(4, 320), 50e6, 51e6), Fit(Cell(prompts=1, prompt_tokens=64), 90e6, 72e6))
)


def test_it_says_how_well_it_fits_and_where_it_fits_worst() -> None:
    words = "\n".join(in_words(CALIBRATED))
    assert "within 3.0%, 19 of 20 within 10.0%" in words
    assert "Worst told: a chunk of 64 tokens\n  90.0 ms, fitted 72.0 ms (-20.0%)" in words
    assert "poor fit" not in words


def test_a_poor_fit_is_called_one() -> None:
    poor = replace(COST, residual=Residual(300, 0.3, 0.9))
    assert "A poor fit" in in_words(replace(CALIBRATED, cost=poor))[-1]


def test_the_file_brings_the_machines_own_settings_into_a_simulation(tmp_path: Path) -> None:
    cost, trace = tmp_path / "here.json", tmp_path / "trace.jsonl"
    save(COST, cost)
    assert load_cost(str(cost)) == COST
    rows = ({"timestamp": 500 * number, "input_length": 100, "output_length": 5} for number in range(40))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(main, ["simulate", str(trace), "--cost", str(cost), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1])
    settings = said["settings"]
    assert (settings["block_size"], settings["max_num_seqs"]) == (32, 128)
    assert settings["num_gpu_blocks"] == (1 << 32) // (46080 * 32)
    # Way in 3.5 ms, one step of 20 + 8 + 100 ms, way back 1 ms.
    assert said["classes"]["all"]["ttft_s"]["p50"] == pytest.approx(0.1325, abs=2e-4)


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "here.json"
    result = CliRunner().invoke(main, ["calibrate", "--embedded", "--output", str(path)])
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr


@pytest.mark.slow
@pytest.mark.model
def test_the_real_engine_is_calibrated_and_a_larger_step_takes_longer(tmp_path: Path) -> None:
    said: list[str] = []
    calibrated = calibrate_embedded(Plan("smollm2", locate("smollm2"), budget_s=25.0), said.append)
    cost = calibrated.cost
    assert cost.machine is not None
    assert cost.front_end is not None
    assert cost.provenance["model"] == "smollm2"
    assert sum(cost.ns.values()) > 0
    assert any(line.startswith("serving adds") for line in said)
    save(cost, tmp_path / "here.json")
    assert load_cost(str(tmp_path / "here.json"), "smollm2") == cost


def test_without_a_target_it_asks_for_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["calibrate", "--output", str(tmp_path / "here.json")])
    assert result.exit_code == 2
    assert "--embedded, or the address of a server" in result.stderr
