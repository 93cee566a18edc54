"""What a start may cost: which processes import what, and that a warm engine has nothing left to do once."""

import subprocess
import sys

import pytest

from headrace.cli.recipe import warm_up
from headrace.core.settings import Settings
from headrace.executor import sampling
from headrace.executor.models import locate
from headrace.executor.paged import PagedExecutor, load

pytestmark = pytest.mark.slow

HEAVY = ("uvicorn", "starlette", "aiohttp", "rich", "click", "huggingface_hub", "httpx2")


@pytest.mark.parametrize("module", ["headrace.__main__", "headrace.cli.recipe"])
def test_the_engines_process_imports_no_commands_and_no_web_stack(module: str) -> None:
    """A spawned process imports its parent's main module: that cost a second at each start and restart."""
    script = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.model
def test_a_warm_engine_has_made_the_table_that_draws_need() -> None:
    """It was made in the first request that was not greedy: 60 to 110 ms of its time to first token."""
    sampling._speeds.cache_clear()
    warm_up(
        PagedExecutor(load(locate("smollm2")), 20),
        Settings(max_model_len=64, num_gpu_blocks=20, block_size=32),
    )
    assert sampling._speeds.cache_info().currsize == 1
