"""`headrace` with a scripted model: steps take a time per token, so budgets matter as they do for real.

scripted_headrace.py serve MODEL FLAGS...     a server, as `headrace serve` is
scripted_headrace.py tune OPTIONS...          the real command, on such servers and a short workload

HEADRACE_TEST_SERVER says how such a server behaves: `well`; `crashes` at its start under any other settings;
`noisy`, each step up to three times as long; `drifts`, each start half as fast again as the one before.
"""

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from headrace.cli import tune as tune_module
from headrace.cli import tuning_survey
from headrace.cli.main import main
from headrace.cli.tuning_targets import EmbeddedTarget
from headrace.core.cost import FrontEnd, Machine, Residual
from headrace.core.plan import Plan as Step
from headrace.core.plan import Work
from headrace.core.ports import StepResult
from headrace.core.settings import SchedulingPolicy, Settings
from headrace.engine.engine import Engine
from headrace.executor.cost import FittedCost
from headrace.executor.scripted import ScriptedExecutor, ScriptedTokenizer
from headrace.net.engine_process import Built
from headrace.net.listening import bind
from headrace.net.messages import Budget
from headrace.net.server import Service, Serving, serve
from headrace.workload.mixed import MixedWorkload

MAX_MODEL_LEN = 40_000  # a byte is a token here, a word some six of them
NUM_BLOCKS = 4_000
STEP_S, TOKEN_S = 0.002, 0.0001
KV_BYTES_PER_TOKEN = 2**20
KV_BYTES = NUM_BLOCKS * 32 * KV_BYTES_PER_TOKEN

COST = FittedCost(
    ns={"step": 1e9 * STEP_S, "decode_seqs": 1e9 * TOKEN_S, "prefill_tokens": 1e9 * TOKEN_S},
    residual=Residual(1000, 0.01, 0.05),
    provenance={"by": "a test"},
    machine=Machine(
        "scripted",
        "scripted",
        MAX_MODEL_LEN,
        KV_BYTES,
        KV_BYTES_PER_TOKEN,
        async_scheduling=False,
        block_size=32,
    ),
    front_end=FrontEnd(3_000_000, 0.0, 1_000_000),
)
"""What such a server costs, to the letter."""

WORKLOAD = MixedWorkload(
    short_rps=12,
    long_rps=1,
    short_prompt_tokens=(20, 30),
    short_output_tokens=(2, 4),
    long_prompt_tokens=(600, 700),
    long_output_tokens=(2, 4),
    duration_s=2.5,
    seed=5,
)


HOW = os.environ.get("HEADRACE_TEST_SERVER", "well")


def _drifted() -> float:
    """Slower with each start, counted in a file."""
    counter = Path(os.environ["HEADRACE_TEST_FOLDER"]) / "starts"
    starts = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(starts + 1))
    return 1.5**starts


class TakesTime:
    """A scripted executor that takes as long as a machine with so much work a token would."""

    def __init__(self, num_blocks: int) -> None:
        self._inner = ScriptedExecutor(num_blocks)
        self._slower = _drifted() if HOW == "drifts" else 1.0

    def run(self, plan: Step) -> StepResult:
        noise = random.uniform(1, 3) if HOW == "noisy" else 1.0
        time.sleep((STEP_S + TOKEN_S * plan.num_scheduled_tokens) * self._slower * noise)
        return self._inner.run(plan)

    def forget(self, work: Work) -> None:
        self._inner.forget(work)


@dataclass(frozen=True)
class Recipe:
    settings: Settings

    def __call__(self) -> Built:
        return Built(Engine(self.settings), TakesTime(NUM_BLOCKS), Budget(1, KV_BYTES, "none"))


def serve_scripted(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--long-prefill-token-threshold", type=int, default=0)
    parser.add_argument("--watermark", type=float, default=0.0)
    parser.add_argument("--scheduling-policy", default="fcfs")
    parser.add_argument("--max-model-len", type=int, default=MAX_MODEL_LEN)
    parser.add_argument("--kv-cache-memory-bytes", type=int)
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--no-enable-prefix-caching", action="store_true")
    flags = parser.parse_args(arguments)
    settings = Settings(
        max_model_len=flags.max_model_len,
        num_gpu_blocks=NUM_BLOCKS,
        watermark=flags.watermark,
        scheduling_policy=SchedulingPolicy(flags.scheduling_policy),
        enable_prefix_caching=not flags.no_enable_prefix_caching,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
    )
    if HOW == "crashes" and settings != Settings(
        max_model_len=flags.max_model_len, num_gpu_blocks=NUM_BLOCKS
    ):
        raise MemoryError("no room for so many chunks")

    def announce(serving: Serving) -> None:
        print(f"serving {flags.model} at {serving.url}", flush=True)

    service = Service((flags.model,), Recipe(settings), ScriptedTokenizer, shutdown_timeout_s=1.0)
    with bind(flags.host, flags.port) as listener:
        serve(service, listener, announce)


def tune_scripted(arguments: list[str]) -> None:
    """The load and the cost are known, so nothing is fitted or calibrated."""
    files: Any = SimpleNamespace(name="scripted", max_model_len=MAX_MODEL_LEN)
    target = EmbeddedTarget("scripted", files, (sys.executable, __file__), steps_are_timed=False)
    with patch.object(tune_module, "target_named", MagicMock(return_value=target)), nothing_to_find_out():
        main(["tune", *arguments])


def nothing_to_find_out() -> Any:
    return patch.multiple(
        tuning_survey,
        calibrate_url=MagicMock(return_value=SimpleNamespace(cost=COST)),
        url_in_words=MagicMock(return_value=["it is known"]),
        fitted=MagicMock(return_value=WORKLOAD),
        timed=MagicMock(return_value=WORKLOAD),
    )


if __name__ == "__main__":
    {"serve": serve_scripted, "tune": tune_scripted}[sys.argv[1]](sys.argv[2:])
