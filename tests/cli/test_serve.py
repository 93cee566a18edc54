"""`headrace serve`: flags under vLLM's names, contradictions found before anything is loaded."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.quantity import QUANTITY
from headrace.cli.recipe import warm_up
from headrace.cli.serve import Options, announcement, decide
from headrace.core.errors import BadInput
from headrace.core.settings import Settings
from headrace.executor.scripted import ScriptedExecutor
from headrace.net.listening import bind
from headrace.net.messages import Budget
from headrace.net.server import Serving

OPTIONS: Options = {
    "host": "127.0.0.1",
    "port": 0,
    "revision": None,
    "served_model_name": (),
    "uds": None,
    "api_key": (),
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_ca_certs": None,
    "ssl_cert_reqs": 0,
    "shutdown_timeout": 1.0,
    "warmup": True,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
    "queue_timeout": None,
    "request_timeout": None,
    "gpu_memory_utilization": None,
    "max_model_len": None,
    "max_num_batched_tokens": None,
    "max_num_seqs": None,
    "long_prefill_token_threshold": 0,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "scheduling_policy": "fcfs",
    "slo": (),
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "vllm_version": "0.32",
    "kv_cache_memory_bytes": None,
    "kv_cache_dtype": "auto",
    "expand_weights": None,
    "kv_cache_metrics": False,
    "kv_cache_metrics_sample": 0.01,
    "disable_log_stats": False,
    "stream_interval": 1,
    "block_size": None,
    "num_gpu_blocks_override": None,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments])


def test_help_shows_every_flag_under_a_heading_and_examples() -> None:
    shown = run("--help").output
    flags = [name for name in OPTIONS if name != "model"]
    assert all(f"--{name.replace('_', '-')}" in shown for name in flags)
    assert "Budgets of a step:" in shown
    assert "headrace serve smollm2\n" in shown
    assert "completions -d \\\n" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_port_in_use_is_said_before_the_model_is_looked_for() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        result = run("no-such-model", "--port", str(port))
    assert result.exit_code == 2
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr
    assert "--port" in result.stderr


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path / "missing.gguf"), "--port", "0")
    assert result.exit_code == 2
    assert "missing.gguf" in result.stderr


@pytest.mark.parametrize(
    ("text", "number"),
    [("2048", 2048), ("8k", 8000), ("8K", 8192), ("2G", 2 << 30), ("1.5k", 1500), ("0.5G", 1 << 29)],
)
def test_quantities_have_vllms_suffixes(text: str, number: int) -> None:
    assert QUANTITY.convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "2GB", "-1", "G", "1e9", "²", "0x10", "auto"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number"):
        QUANTITY.convert(text, None, None)


def test_defaults_are_vllms() -> None:
    flags = decide(OPTIONS, 8192)
    assert (flags.max_model_len, flags.max_num_batched_tokens, flags.max_num_seqs) == (8192, 2048, 128)


def test_defaults_give_way_to_what_is_given() -> None:
    assert decide({**OPTIONS, "max_num_batched_tokens": 64}, 8192).max_num_seqs == 64
    assert decide({**OPTIONS, "max_num_seqs": 2, "max_model_len": 100}, 8192).max_num_batched_tokens == 200
    whole = decide({**OPTIONS, "enable_chunked_prefill": False}, 8192)
    assert whole.max_num_batched_tokens == 8192, "a prompt must fit into one step"


@pytest.mark.parametrize(
    "given",
    [
        {"max_model_len": 9000},
        {"max_model_len": -1},
        {"max_model_len": 0},
        {"max_model_len": 1},
        {"gpu_memory_utilization": float("nan")},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.01},
        {"max_num_batched_tokens": 64, "max_num_seqs": 65},
        {"max_num_batched_tokens": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 4096, "enable_chunked_prefill": False},
        {"long_prefill_token_threshold": 8193},
        {"watermark": 1.0},
        {"num_gpu_blocks_override": 1},
        {"num_gpu_blocks_override": 0},
    ],
    ids=str,
)
def test_budgets_that_contradict_each_other_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        decide({**OPTIONS, **given}, 8192)  # pyright: ignore[reportArgumentType] - of mixed values


def test_blocks_are_looked_at_only_on_demand() -> None:
    assert decide({**OPTIONS, "kv_cache_metrics_sample": 0.5}, 8192).block_sample == 0
    assert decide({**OPTIONS, "kv_cache_metrics": True}, 8192).block_sample == 0.01


def test_the_budgets_are_announced_in_80_columns_then_the_address_and_what_to_try() -> None:
    settings = Settings(max_model_len=131_072, num_gpu_blocks=100_001, long_prefill_token_threshold=4096)
    budget = Budget(weights_bytes=16 << 30, kv_cache_bytes=64 << 30, kv_cache_dtype="f32")
    shown = announcement("smollm2", Serving("http://127.0.0.1:4711", settings, budget, 1))
    lines = shown.splitlines()
    assert lines[-3] == "serving smollm2 at http://127.0.0.1:4711"
    command = shlex.split("\n".join(lines[-2:]))
    assert command[:3] == ["curl", "-N", "http://127.0.0.1:4711/v1/chat/completions"]
    assert json.loads(command[-1])["stream"]
    assert max(len(line) for line in lines) <= 80
    assert "100,000 blocks" in shown
    assert "24.41x   maximum concurrency for 131,072 tokens per request" in shown
    assert re.search(r"65,536 MiB", shown)


@pytest.mark.parametrize(
    ("url", "asks_for_key", "words"),
    [
        ("unix:/tmp/socket", False, ["--unix-socket", "/tmp/socket", "http://localhost/v1/chat/completions"]),
        (
            "https://[::1]:1",
            True,
            ["https://[::1]:1/v1/chat/completions", "-H", "Authorization: Bearer $KEY"],
        ),
    ],
)
def test_what_to_try_fits_how_it_is_served(url: str, asks_for_key: bool, words: list[str]) -> None:
    settings = Settings(max_model_len=512, num_gpu_blocks=100)
    serving = Serving(url, settings, Budget(1, 1, "f32"), 1)
    lines = announcement("m", serving, asks_for_key=asks_for_key).splitlines()
    assert shlex.split("\n".join(lines[-2:]))[2 : 2 + len(words)] == words


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored"])
def test_a_stop_while_the_model_is_made_ready_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, ctrl_c: signal.Handlers
) -> None:
    """Not a sudden death, which would leave the converting process and its folder behind.

    In the background of a script Ctrl-C is ignored; a stop must not be.
    """

    def being_stopped(_model: str, _revision: str | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("headrace.cli.serve.locate", being_stopped)
    died = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _frame: died.append(number))
    before_ctrl_c = signal.signal(signal.SIGINT, ctrl_c)
    try:
        assert run("smollm2", "--port", "0").exit_code == 130
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_ctrl_c)
    assert not died


@pytest.mark.parametrize(("blocks", "max_model_len"), [(2, 8192), (2, 33), (99, 2)])
def test_the_warm_up_fits_into_the_smallest_engine(blocks: int, max_model_len: int) -> None:
    settings = Settings(max_model_len=max_model_len, num_gpu_blocks=blocks, block_size=32)
    warm_up(ScriptedExecutor(blocks), settings)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-cache-memory-bytes", "64M"), "enough for"),
        (("--block-size", "16"), "32 tokens in a KV block"),
        (("--kv-cache-memory-bytes", "1k"), "two blocks"),
    ],
)
def test_what_only_the_loaded_model_can_tell_is_refused_with_the_numbers(
    flags: tuple[str, ...], words: str
) -> None:
    result = run("smollm2", "--port", "0", *flags)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.slow
@pytest.mark.model
def test_the_command_serves_and_drains(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", "smollm2", "--port", "0", "--max-model-len", "1k"],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        deadline = time.monotonic() + 60
        while (
            found := re.search(r"^serving smollm2 at (http://\S+)\n", log.read_text(), re.MULTILINE)
        ) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        assert "1,000 tokens" in log.read_text()
        with urllib.request.urlopen(f"{found[1]}/v1/models", timeout=10) as answer:
            assert b'"max_model_len":1000' in answer.read()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    after = log.read_text().partition(f"{found[1]}\n")[2].splitlines()
    assert [line.split()[0] for line in after] == ["curl", '\'{"messages":'], "nothing but what to try"
