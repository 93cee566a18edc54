"""Logged start-ups of vLLM: read, and reproduced within 2 % where the log says what was available."""

import os
from pathlib import Path
from typing import Any

import pytest

from bench.plan.__main__ import compared, far, summary
from bench.plan.compare import compare
from bench.plan.live import start_of_metrics
from bench.plan.peer import Question, disagreements, drawn_questions, questions_of_catalogue
from bench.plan.starts import read_cases, read_more, read_server_log, said_in, start_of
from headrace.capacity.gpus import GIB, Dtype

SHARED = os.environ.get("HEADRACE_SHARED")
VLLM = Path(".vllm")

CASE = {
    "id": "a case",
    "version": "0.31.0",
    "flags": {"tensor-parallel-size": 2, "max-model-len": 8192, "kv-cache-dtype": "fp8"},
    "log": ["Available KV cache memory: 10.00 GiB", "GPU KV cache size: 319,500 tokens"],
    "hardware": {"gpu": "H100"},
    "workload": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
}


def test_logged_start_ups_are_reproduced_within_2_percent() -> None:
    rows, silent = compared(list(read_more()))
    assert not silent
    assert len([row for row in rows if row.basis != "whole"]) >= 11
    assert [row for row in rows if far(row)] == []


@pytest.mark.skipif(SHARED is None, reason="HEADRACE_SHARED does not say where logs of vLLM are")
def test_the_logs_that_are_shared_are_reproduced_within_2_percent() -> None:
    assert SHARED is not None
    samples = Path(SHARED) / "vllm_samples"
    page = (samples / "metrics_0.32.txt").read_text()
    starts = [
        *read_cases(Path(SHARED) / "cases"),
        read_server_log(samples / "vllm_server.log"),
        start_of_metrics("page", page, 4096),
    ]
    said = summary(*compared(starts))
    assert said["figures"] == said["within_2_percent"]
    assert isinstance(said["figures"], int)
    assert said["figures"] >= 13


def test_a_case_is_read_with_its_flags_card_and_figures() -> None:
    start = start_of(CASE)
    assert start.model is not None
    assert (start.version, start.kv_cache_dtype, start.max_model_len) == ("0.31", Dtype.FP8, 8192)
    assert start.said == {"available_gib": 10.0, "tokens": 319_500}
    (tokens,) = (row for row in compare(start)[0] if row.figure == "tokens")
    assert tokens.ours == 10 * GIB // (16 * 32 * 2 * 4 * 128) * 16
    assert far(tokens), "2.56 % off, and told so"


def test_a_log_of_the_first_engine_says_how_long_its_step_was() -> None:
    lines = [
        "# GPU blocks: 1478, # CPU blocks: 2048",
        "Maximum concurrency for 29000 tokens per request: 0.82x",
    ]
    assert start_of({**CASE, "flags": {}, "log": lines}).step_tokens == 29_000


def test_what_cannot_be_compared_says_why() -> None:
    unknown = start_of({**CASE, "workload": {"model": "nobody/knows-this"}})
    assert compare(unknown) == ([], "no model is named that the catalogue has")


@pytest.mark.parametrize(
    ("line", "figure", "value"),
    [
        ("(EngineCore pid=1) INFO [x.py:1] CPU KV cache size: 23,296 tokens, Maximum", "tokens", 23_296),
        ("Explicitly set (1.0/8.34) GiB for KV cache on node 0.", "available_gib", 1.0),
        ("Available KV cache memory: -3.21 GiB", "available_gib", -3.21),
        ("Maximum concurrency for 4,096 tokens per request: 5.69x", "concurrency", 5.69),
        ("Free memory on device cuda:1 (19.77/22.05 GiB) on startup", "total_gib", 22.05),
    ],
)
def test_a_line_of_a_log_is_read(line: str, figure: str, value: float) -> None:
    assert said_in([line])[figure] == value


def _of_one_block(question: Question) -> dict[str, Any]:
    return {"blocks": 1}


@pytest.mark.slow
@pytest.mark.skipif(not (VLLM / "bin" / "python").exists(), reason="needs vLLM: make vllm")
def test_vllms_own_functions_divide_the_cache_as_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [*questions_of_catalogue(), *drawn_questions(100)]
    assert disagreements(VLLM, questions) == []
    monkeypatch.setattr(Question, "ours", _of_one_block)
    assert len(disagreements(VLLM, questions[:2])) == 2, "it would be told"
