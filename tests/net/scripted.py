"""Recipes without a model: a byte is a token, and every answer is the same text.

Imported in the engine's process too, so nothing of the web stack may be imported here.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import ModelUnusable
from headrace.core.plan import Plan, Work
from headrace.core.ports import StepResult
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.executor.scripted import ScriptedExecutor, ScriptedTokenizer
from headrace.net.engine_process import Built
from headrace.net.messages import Budget

ANSWER = "The naïve café serves 東京 tea; it is open until late. "
SETTINGS = Settings(
    max_model_len=512,
    num_gpu_blocks=65,
    block_size=16,
    max_num_batched_tokens=256,
    max_num_seqs=32,
)
BUDGET = Budget(weights_bytes=1_000_000, kv_cache_bytes=2_000_000, kv_cache_dtype="u8")


class Answering:
    """The suspicious scripted executor, saying `answer` and then the end token."""

    def __init__(self, settings: Settings, answer: bytes, step_s: float) -> None:
        self._checked = ScriptedExecutor(
            settings.num_gpu_blocks, settings.block_size, step_s=step_s, script=self._next
        )
        self._answer = answer

    def run(self, plan: Plan) -> StepResult:
        result = self._checked.run(plan)
        result.sample_ns = 1000
        return result

    def forget(self, work: Work) -> None:
        self._checked.forget(work)

    def _next(self, work: Work) -> int:
        place = work.num_output_tokens
        if work.request.sampling.eos_token_id is None:
            return self._answer[place % len(self._answer)]
        return self._answer[place] if place < len(self._answer) else ScriptedTokenizer.eos_token_id


@dataclass(frozen=True)
class ScriptedRecipe:
    settings: Settings = SETTINGS
    answer: bytes = field(default=ANSWER.encode())
    step_s: float = 0.0

    def __call__(self) -> Built:
        return Built(Engine(self.settings), Answering(self.settings, self.answer, self.step_s), BUDGET)


class Dying:
    """An executor that ends its process the moment it has something to do."""

    def run(self, plan: Plan) -> StepResult:
        raise MemoryError(f"no room for {len(plan.chunks)} chunks")

    def forget(self, work: Work) -> None:
        raise AssertionError("it does not live that long")


def dying_recipe() -> Built:
    return Built(Engine(SETTINGS), Dying(), BUDGET)


@dataclass(frozen=True)
class OnceRecipe:
    """Starts the first time; afterwards `marker` is there, and it does not."""

    marker: Path

    def __call__(self) -> Built:
        if self.marker.exists():
            raise ModelUnusable("somebody has taken the file away")
        self.marker.touch()
        return ScriptedRecipe(step_s=0.01)()


def unusable_recipe() -> Built:
    raise ModelUnusable("the file is cut off after 12 bytes", "fetch it again")


def crashing_recipe() -> Built:
    raise ZeroDivisionError("out of luck")


def endless_recipe() -> Built:
    time.sleep(60)
    raise AssertionError("nobody ended this process while it loaded")
