"""What is tuned: told apart by what a person says, started by the words that they would type."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli.tuning_survey import survey_of_twin
from headrace.cli.tuning_targets import (
    AddressTarget,
    CommandTarget,
    EmbeddedTarget,
    TwinTarget,
    VllmTarget,
    target_named,
)
from headrace.core.errors import TargetFailed
from headrace.net.server_facts import ServerFacts
from headrace.targets.vllm import VllmInstallation

HERE = Path(".vllm")
FILES: Any = SimpleNamespace(name="smollm2", max_model_len=8192)
TOLD = ServerFacts(
    max_model_len=4096,
    max_num_batched_tokens=1024,
    max_num_seqs=64,
    kv_cache_memory_bytes=2**30,
    watermark=0.01,
)


def test_targets_are_told_apart_by_what_is_said(tmp_path: Path) -> None:
    assert target_named(None, ["smollm2"], HERE) is None
    assert target_named("embedded", [], HERE) is None
    assert target_named(None, ["vllm", "serve", "m"], HERE) == CommandTarget(("vllm", "serve", "m"))
    assert target_named("localhost:8000", [], HERE) == AddressTarget("http://localhost:8000")
    assert target_named("https://llm.example/v1", [], HERE) == AddressTarget("https://llm.example")
    assert target_named("llama-3.1-8b/h100", [], HERE) == TwinTarget("llama-3.1-8b/h100")
    assert target_named("cost.json", [], HERE) == TwinTarget("cost.json")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    assert target_named("vllm", [], tmp_path) == VllmTarget(VllmInstallation(tmp_path))


def test_a_command_of_ones_own_keeps_its_words_and_has_the_settings_in_their_places() -> None:
    target = CommandTarget(("vllm", "serve", "m", "--max-num-seqs", "64", "--port=9000"))
    assert target.command({}) == "vllm serve m --max-num-seqs 64 --port=9000"
    changed = target.command({"max_num_seqs": 16, "max_num_batched_tokens": 512})
    assert changed == "vllm serve m --max-num-seqs 16 --port=9000 --max-num-batched-tokens 512"


def test_the_start_is_what_the_server_tells_and_its_kinds_defaults_elsewhere() -> None:
    told = CommandTarget(("vllm", "serve", "m")).start(TOLD)
    assert told["max_num_batched_tokens"] == 1024
    assert told["watermark"] == 0.01
    silent = EmbeddedTarget("smollm2", FILES).start(ServerFacts())
    assert silent["max_num_seqs"] == 128
    assert silent["max_model_len"] == 8192
    assert silent["scheduling_policy"] == "fcfs"
    assert "kv_cache_memory_bytes" not in silent, "a lever of unknown value is left alone"


def test_an_address_is_never_asked_for_other_settings() -> None:
    target = AddressTarget("http://localhost:8000")
    assert not target.restarts
    with target.serve({}) as served:
        assert served.url == "http://localhost:8000"
        served.check_alive()
    with pytest.raises(TargetFailed, match="not restarted"), target.serve({"max_num_seqs": 4}):
        pytest.fail("it must not be entered")


def test_a_twins_context_is_what_its_memory_holds_of_the_models() -> None:
    survey, cost = survey_of_twin(TwinTarget("llama-3.1-8b/l4"), None)
    blocks, block_size = survey.facts.num_gpu_blocks, survey.facts.block_size
    assert blocks
    assert block_size
    assert cost.machine is not None
    assert survey.start["max_model_len"] == (blocks - 1) * block_size < cost.machine.max_model_len
