"""`headrace simulate`: a table, a verdict, a record; and settings and files that are refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.simulate import even_width_s
from headrace.measure import record
from headrace.workload.own_form import write_workload
from headrace.workload.trace import About, TraceRequest

COST = ("--cost", "llama-3.1-8b/h100")


def simulate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def workload(folder: Path, *, requests: int = 100, every_ms: int = 100, tokens: int = 500) -> Path:
    path = folder / "trace.jsonl"
    rows = (
        {"timestamp": number * every_ms, "input_length": tokens, "output_length": 20}
        for number in range(requests)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_it_shows_the_tables_of_a_run_the_verdict_and_the_budgets(tmp_path: Path) -> None:
    result = simulate(workload(tmp_path), *COST)
    assert result.exit_code == 0, result.output
    for words in ("TTFT", "It kept up: 10.", "computing its own prompt", "KV     │", "0 preemptions"):
        assert words in result.stdout
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


def test_under_overload_there_are_no_latencies_but_the_budget_that_is_short(tmp_path: Path) -> None:
    path = workload(tmp_path, requests=200, every_ms=10)
    result = simulate(path, *COST, "--max-num-seqs", "2", "--json")
    assert result.exit_code == 0, result.output
    assert re.search(r"OVERLOADED: 10\d requests a second came", result.stdout)
    assert "TTFT" not in result.stdout.splitlines()[4]
    assert "no sequence slot" in result.stdout
    said = json.loads(result.stdout.splitlines()[-1])
    assert said["load"]["verdict"] == "overloaded"
    assert said["classes"]["all"]["ttft_s"] is None
    assert said["classes"]["all"]["throughput_rps"] > 0


def test_the_record_is_kept_and_can_be_simulated_again(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    first = simulate(workload(tmp_path), *COST, "--output", kept)
    assert f"Record: {kept}" in first.stdout
    assert len(record.read(kept).timelines) == 100
    again = simulate(kept, *COST)
    assert first.stdout.splitlines()[3:-1] == again.stdout.splitlines()[3:]


def test_the_same_command_says_the_same_twice(tmp_path: Path) -> None:
    path = workload(tmp_path)
    first, again = (simulate(path, *COST, "--replicas", "2", "--json").stdout for _ in range(2))
    assert first == again


def test_json_has_the_budgets_over_time(tmp_path: Path) -> None:
    said = json.loads(
        simulate(workload(tmp_path), *COST, "--replicas", "2", "--json").stdout.splitlines()[-1]
    )
    one, other = said["budgets"]["replicas"]
    assert set(one) == {"at_s", "busy", "tokens_per_s", "running", "waiting", "kv_cache_usage"}
    computed = sum(map(sum, (one["tokens_per_s"], other["tokens_per_s"]))) * said["budgets"]["bin_s"]
    assert computed == pytest.approx(100 * (500 + 19), rel=1e-3)
    assert said["settings"]["async_scheduling"] is True


def test_a_settings_file_gives_defaults_and_flags_win(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"max_num_seqs": 7, "max_num_batched_tokens": "1k", "enable_prefix_caching": false}')
    result = simulate(workload(tmp_path), *COST, "--settings", settings, "--max-num-seqs", "9", "--json")
    said = json.loads(result.stdout.splitlines()[-1])["settings"]
    assert (said["max_num_seqs"], said["max_num_batched_tokens"]) == (9, 1000)
    assert said["enable_prefix_caching"] is False


def test_without_a_machine_the_number_of_blocks_must_be_said(tmp_path: Path) -> None:
    cost = tmp_path / "cost.json"
    cost.write_text(
        json.dumps(
            {
                "format": "headrace cost model",
                "version": 1,
                "kind": "fitted",
                "machine": None,
                "ns": {"step": 1e6, "prefill_tokens": 1e4},
                "residual": {"observations": 10, "median": 0.01, "p95": 0.1},
                "provenance": {},
            }
        )
    )
    refused = simulate(workload(tmp_path), "--cost", cost)
    assert refused.exit_code == 2
    assert "--num-gpu-blocks-override" in refused.stderr
    assert simulate(workload(tmp_path), "--cost", cost, "--num-gpu-blocks-override", "1000").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scale", "0"], "cannot be scaled by 0"),
        (["--scale", "nan"], "cannot be scaled by nan"),
        (["--first", "0"], "the first 0 requests"),
        (["--replicas", "0"], "0 replicas"),
        (["--cost", "no-such/h100"], "no-such"),
        (["--cost", "missing.json"], "missing.json cannot be read"),
        (["--cost", "llama-3.1-8b/l4"], "one request of 131,072 tokens does not fit"),
        (["--max-num-batched-tokens", "16", "--max-num-seqs", "32"], "must be at least max_num_seqs"),
        (["--max-num-seqs", "0"], "max_num_seqs is 0"),
        (["--max-model-len", "400"], "none of the 100 requests fits. .* 500 tokens"),
        (["--num-gpu-blocks-override", "9"], "none of the 100 requests fits. .* blocks"),
        (["--block-size", "0"], "block-size is 0"),
        (["--watermark", "2"], "watermark is 2"),
        (["--vllm-version", "0.7"], "'0.7', whose rules are not known"),
        (["--vllm-version", "0.23", "--watermark", "0.1"], "vLLM 0.23 has no such setting"),
        (["--output", "/no/such/folder/x.jsonl"], "there is no folder"),
    ],
)
def test_nonsense_is_refused_with_the_numbers(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = simulate(workload(tmp_path), *COST, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("headrace: ")
    assert re.search(complaint, result.stderr), result.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("[1]", "no JSON object"), ("{", "cannot be read"), ('{"x": 1}', "x is no setting")],
)
def test_a_settings_file_that_says_nothing_sensible_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(text)
    result = simulate(workload(tmp_path), *COST, "--settings", settings)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_requests_that_do_not_fit_are_failures_among_the_others(tmp_path: Path) -> None:
    path = workload(tmp_path)
    path.write_text(path.read_text() + '{"timestamp": 99999, "input_length": 9000, "output_length": 2}\n')
    result = simulate(path, *COST, "--max-model-len", "2000")
    assert result.exit_code == 0
    assert "1 of 101 failed" in result.stdout
    assert "9000 tokens" in result.stdout


@pytest.mark.parametrize(("span_s", "width_s"), [(0, 0.001), (1, 0.005), (400, 1), (3500, 10), (1e12, 5e7)])
def test_bins_have_even_widths(span_s: float, width_s: float) -> None:
    assert even_width_s(span_s) == pytest.approx(width_s)


@pytest.mark.slow
def test_every_output_is_equal_to_the_byte_in_any_process_and_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    rows = (
        {"timestamp": 40 * number, "input_length": 600, "output_length": 9, "hash_ids": [number % 5, number]}
        for number in range(60)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs: set[tuple[bytes, bytes]] = set()
    for seed in ("0", "1", "2"):
        kept = tmp_path / "run.jsonl"
        command = (sys.executable, "-m", "headrace", "simulate", str(path), *COST, "--replicas", "3")
        more = ("--router", "prefix-affine", "--output", str(kept), "--json")
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run((*command, *more), env=environment, capture_output=True, check=True)
        outputs.add((done.stdout, kept.read_bytes()))
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (bytes(range(256)) * 9, "line 1: not a workload"),
        (b'{"timestamp": 1, "input_length": 5, "output_length": 5}\n{"timestamp": 2, "inp', "cut off"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,4", ""),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374", "may be cut off"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:47,9,9\n2023-11-16 18:15:46.993,9,9",
            "line 3: out of order, 0.007 s before the row above it",
        ),
    ],
)
def test_a_file_that_is_empty_binary_cut_off_or_out_of_order_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    result = simulate(path, *COST)
    assert result.exit_code == (2 if complaint else 0), result.output
    assert complaint in result.stderr


def test_a_workload_that_cannot_fit_is_refused_with_how_many_and_the_largest(tmp_path: Path) -> None:
    result = simulate(workload(tmp_path), *COST, "--max-model-len", "400")
    assert result.exit_code == 2
    assert "none of the 100 requests fits. The largest has 500 prompt and 20 output tokens" in result.stderr


def test_a_cost_of_another_model_is_refused(tmp_path: Path) -> None:
    result = simulate(workload(tmp_path), *COST, "--model", "qwen3-8b")
    assert result.exit_code == 2
    assert "is the cost of llama-3.1-8b, not of qwen3-8b" in result.stderr


def test_an_endless_run_is_refused_with_how_long_it_would_be(tmp_path: Path) -> None:
    result = simulate(workload(tmp_path), *COST, "--scale", "1e-9")
    assert result.exit_code == 2
    assert "at most 31622400 s" in result.stderr


def test_a_workload_brings_its_own_goals_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "goals.jsonl"
    requests = [TraceRequest(at / 10, 500, 20, "chat") for at in range(30)]
    write_workload(path, About(slo="chat: ttft 7s"), requests)
    for more, goal in (((), "chat: ttft 7s"), (("--slo", "ttft 3s"), "ttft 3s")):
        kept = tmp_path / "run.jsonl"
        result = simulate(path, *COST, "--scheduling-policy", "slo", *more, "--output", kept)
        assert result.exit_code == 0, result.output
        assert record.read(kept).settings["slo"] == goal


def test_what_a_cost_looks_like_is_said_where_it_is_missing() -> None:
    result = CliRunner().invoke(main, ["simulate", "azure.csv"])
    assert result.exit_code == 2
    assert "Missing option '--cost'. A file, or a name like llama-3.1-8b/h100" in result.output
