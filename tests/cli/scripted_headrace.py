"""`headrace` with a scripted model: steps take a time per token, so budgets matter as they do for real.

scripted_headrace.py serve MODEL FLAGS...     a server, as `headrace serve` is
scripted_headrace.py tune OPTIONS...          the real command, on such servers and a short workload
"""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from headrace.cli import tune as tune_module
from headrace.cli.main import main
from headrace.cli.tuning import Plan
from headrace.core.plan import Plan as Step
from headrace.core.plan import Work
from headrace.core.ports import StepResult
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.executor.scripted import ScriptedExecutor, ScriptedTokenizer
from headrace.net.engine_process import Built
from headrace.net.listening import bind
from headrace.net.messages import Budget
from headrace.net.server import Service, Serving, serve
from headrace.workload.mixed import MixedWorkload

MAX_MODEL_LEN = 40_000  # a byte is a token here, a word some six of them
NUM_BLOCKS = 4_000
STEP_S, TOKEN_S = 0.002, 0.0001

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


class TakesTime:
    """A scripted executor that takes as long as a machine with so much work a token would."""

    def __init__(self, num_blocks: int) -> None:
        self._inner = ScriptedExecutor(num_blocks)

    def run(self, plan: Step) -> StepResult:
        time.sleep(STEP_S + TOKEN_S * plan.num_scheduled_tokens)
        return self._inner.run(plan)

    def forget(self, work: Work) -> None:
        self._inner.forget(work)


@dataclass(frozen=True)
class Recipe:
    settings: Settings

    def __call__(self) -> Built:
        return Built(Engine(self.settings), TakesTime(NUM_BLOCKS), Budget(1, 1, "none"))


def serve_scripted(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--long-prefill-token-threshold", type=int, default=0)
    flags = parser.parse_args(arguments)
    settings = Settings(
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks=NUM_BLOCKS,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
    )

    def announce(serving: Serving) -> None:
        print(f"serving {flags.model} at {serving.url}", flush=True)

    service = Service((flags.model,), Recipe(settings), ScriptedTokenizer, shutdown_timeout_s=1.0)
    with bind(flags.host, flags.port) as listener:
        serve(service, listener, announce)


def tune_scripted(arguments: list[str]) -> None:
    def locate(_model: str) -> SimpleNamespace:
        return SimpleNamespace(max_model_len=MAX_MODEL_LEN)

    plan = partial(Plan, workload=WORKLOAD, program=(sys.executable, __file__))
    with patch.multiple(tune_module, locate=locate, Plan=plan):
        main(["tune", "scripted", *arguments])


if __name__ == "__main__":
    {"serve": serve_scripted, "tune": tune_scripted}[sys.argv[1]](sys.argv[2:])
