"""`headrace tune` with a cost model for a target: no server, no noise, so the same answer every time."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.cli.tuning_journal import NAME
from tests.cli.test_tune_command import without_clock

TWIN = ["tune", "--target", "llama-3.1-8b/h100", "--slo", "p95 ttft < 1s", "--duration", "20s"]


def in_twin(tmp_path: Path, *options: str, journal: str = "twin") -> Any:
    workload = tmp_path / "w.csv"
    if not workload.exists():
        chance = Random(1)
        lengths = [(chance.randint(50, 3000), chance.randint(5, 60)) for _ in range(100)]
        rows = [
            f"2023-11-16 18:15:{number // 10:02}.{number % 10}00000,{prompt},{output}"
            for number, (prompt, output) in enumerate(lengths)
        ]
        workload.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    folder = ["--workload", str(workload), "--journal", str(tmp_path / journal)]
    return CliRunner().invoke(main, [*TWIN, *folder, *options])


@pytest.mark.slow
def test_the_twin_is_tuned_without_a_server_and_asked_again_answers_the_same(tmp_path: Path) -> None:
    first = in_twin(tmp_path, "--json")
    assert first.exit_code == 0, first.output
    line = json.loads(first.stdout.splitlines()[-1])
    assert line["verdict"] in {"improved", "nothing_better"}
    assert line["goal"]["aim"] == "capacity"
    again = in_twin(tmp_path, "--json")
    assert without_clock(json.loads(again.stdout.splitlines()[-1])) == without_clock(line)


@pytest.mark.slow
def test_cut_off_after_any_run_and_gone_on_with_the_answer_is_the_same(tmp_path: Path) -> None:
    whole = in_twin(tmp_path, "--json")
    answer = json.loads(whole.stdout.splitlines()[-1])
    runs = len(answer["trials"])
    for most in range(2, runs):
        in_twin(tmp_path, "--max-trials", str(most), journal="cut")
        with (tmp_path / "cut" / NAME).open("ab") as file:
            file.write(b'{"run": {"overrides": {"max_num')  # as a process that died there leaves it
    last = json.loads(in_twin(tmp_path, "--json", journal="cut").stdout.splitlines()[-1])
    told = ("verdict", "recommended", "gain", "compared", "capacity")
    assert {name: last[name] for name in told} == {name: answer[name] for name in told}


@pytest.mark.slow
def test_a_manifest_is_shown_as_a_diff_and_written(tmp_path: Path) -> None:
    manifest, out = tmp_path / "compose.yaml", tmp_path / "tuned.yaml"
    manifest.write_text("services:\n  llm:\n    image: vllm/vllm-openai  # ours\n    command: --model m\n")
    result = in_twin(tmp_path, "--json", "--manifest", str(manifest), "--out", str(out))
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    assert "# ours" in out.read_text()
    for name, value in line["recommended"].items():
        assert f"--{name.replace('_', '-')} {value}" in out.read_text()
        assert f"--{name.replace('_', '-')} {value}" in line["manifest_diff"]


def test_a_dry_run_says_what_would_be_done_and_starts_nothing(tmp_path: Path) -> None:
    result = in_twin(tmp_path, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "every run is a simulation" in result.output
    assert not (tmp_path / "twin").exists()
    result = CliRunner().invoke(main, ["tune", "--dry-run", "--", "vllm", "serve", "m"])
    assert "Expected: about" in result.output
    assert max(len(line) for line in result.output.splitlines() if not line.startswith("Journal")) <= 80


@pytest.mark.slow
def test_where_the_defaults_are_best_already_it_says_so(tmp_path: Path) -> None:
    """A few short chats a second on a large GPU wait for nothing that a setting could give them."""
    workload = tmp_path / "w.csv"
    rows = [f"2023-11-16 18:15:{number:02}.0000000,{50 + number},8" for number in range(60)]
    workload.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = in_twin(tmp_path, "--aim", "latency", "--duration", "60s", "--json")
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    assert (line["verdict"], line["recommended"]) == ("nothing_better", {})
    assert "ALREADY BEST: keep the settings as they are" in result.stdout
