"""Real vLLM where `make vllm` has installed it, and how its log is read where it has not."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import TargetFailed
from headrace.net.client import served_models
from headrace.net.ports import reserved_port
from headrace.targets.vllm import SERVED_NAME, VllmInstallation, VllmServer, command_of, telling_line
from tests.targets.test_contract import eventually, is_gone

INSTALLATION = VllmInstallation(Path(__file__).parents[2] / ".vllm")
needs_vllm = pytest.mark.skipif(not INSTALLATION.exists, reason="no vLLM here: make vllm")


ENGINE_FAILED = """\
(EngineCore pid=7) ERROR 11-29 22:54:37 [core.py:1510] ValueError: it needs 0.35 GiB
(APIServer pid=5) Traceback (most recent call last):
(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.
  warnings.warn('resource_tracker: leaked objects')
"""
SETTINGS_REFUSED = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, 64 must be 128 or more. [type=value_error, input_value=ArgsKwargs()]
    For further information visit a page
"""

STARTING = """\
(APIServer pid=6164) WARNING 11-29 17:59:29 [system_utils.py:255] This can cause fd limit \
errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n
(APIServer pid=6164) INFO 11-29 17:59:29 [compilation.py:317] Enabled custom fusions: norm_quant, act_quant
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(EngineCore pid=6800) INFO 11-29 17:59:45 [ompmultiprocessing.py:185] OpenMP thread binding info:
(EngineCore pid=6800) INFO 11-29 17:59:45 [ompmultiprocessing.py:185] \tlocal_rank=0, core ids=[0]
(EngineCore pid=6800) INFO 11-29 17:59:45 [ompmultiprocessing.py:185] \treserved_cpus=[1]
"""
"""Of a real start, where a process that is killed ends."""
ENGINE_GONE = """\
(APIServer pid=6164) INFO 11-29 18:06:51 [core_client.py:777] [shutdown] MPClient: complete
(APIServer pid=6164) ERROR 11-29 18:06:51 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=6164) INFO 11-29 18:06:51 [launcher.py:279] [shutdown] API server: engine client stopped
"""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (ENGINE_FAILED, "ValueError: it needs 0.35 GiB"),
        (SETTINGS_REFUSED, "64 must be 128 or more."),
        ("usage: vllm [-v]\nvllm: error: unrecognized arguments: --swap-space 4", "--swap-space 4"),
        ("(Worker pid=9) INFO 11-29 [a.py:1] loading\nKilled", "Killed"),
        (ENGINE_GONE, "AsyncLLM output_handler failed."),
        ("(APIServer pid=5) OSError: [Errno 98] Address already in use", "Address already in use"),
    ],
)
def test_the_line_that_says_why_is_the_cause_and_not_its_aftermath(log: str, why: str) -> None:
    said = telling_line(log.splitlines())
    assert said is not None
    assert said.endswith(why)


@pytest.mark.parametrize("log", [STARTING, "", "Loading safetensors checkpoint shards:  50%\n"])
def test_what_it_was_doing_when_it_was_killed_is_no_reason(log: str) -> None:
    assert telling_line(log.splitlines()) is None


def test_the_command_has_what_a_cpu_needs_and_can_be_typed_as_it_is() -> None:
    server = VllmServer(VllmInstallation(Path("my vllm")), {"max_num_seqs": 16}, port=4711, kv_cache_gib=2)
    assert server.command.startswith("VLLM_CPU_KVCACHE_SPACE=2 HF_HUB_OFFLINE=1 ")
    assert "'my vllm/bin/vllm' serve 'my vllm/model' --dtype float32 --enforce-eager" in server.command
    assert server.command.endswith("--max-num-seqs 16 --host 127.0.0.1 --port 4711")


def test_what_a_person_types_has_nothing_that_only_a_trial_needs() -> None:
    here = VllmInstallation(Path("v"))
    assert command_of(here, {"max_num_seqs": 16}) == (
        "VLLM_CPU_KVCACHE_SPACE=1 v/bin/vllm serve v/model --dtype float32 --enforce-eager --max-num-seqs 16"
    )
    # The variable would have the last word.
    assert command_of(here, {"kv_cache_memory_bytes": 2**31}).startswith("v/bin/vllm serve ")


@pytest.mark.slow
@pytest.mark.alone
@needs_vllm
def test_settings_that_vllm_refuses_are_told_in_its_own_words() -> None:
    server = VllmServer(INSTALLATION, {"max_num_batched_tokens": 64, "max_num_seqs": 128}, port=1)
    with pytest.raises(TargetFailed, match=r"ended before it was ready: .*64.*128"), server:
        pytest.fail("it must not be entered")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@needs_vllm
def test_all_three_processes_of_a_real_vllm_end_with_a_parent_that_is_killed() -> None:
    with reserved_port() as port:
        code = (
            "import time; from pathlib import Path; from headrace.targets.vllm import *\n"
            f"folder = Path({str(INSTALLATION.folder)!r})\n"
            f"server = VllmServer(VllmInstallation(folder), {{}}, port={port}).__enter__()\n"
            "print(server._process.pid, server.url, flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            leader, url = parent.stdout.readline().split()
            try:
                assert asyncio.run(served_models(url)) == [SERVED_NAME]
                group = _group_of(int(leader))
                assert len(group) >= 3
                parent.kill()
                parent.wait()
                assert eventually(lambda: all(is_gone(pid) for pid in group), 60.0)
            finally:
                parent.kill()
                if _group_of(int(leader)):
                    os.killpg(int(leader), signal.SIGKILL)


def _group_of(leader: int) -> list[int]:
    listed = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True, check=True)
    rows = [[int(word) for word in line.split()] for line in listed.stdout.splitlines()]
    return [pid for pid, group in rows if group == leader]
