"""A model without a model: a byte is a token, and every answer is the same text.

Imported in the engine's process too, so nothing of the web stack may be imported here.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.errors import ModelUnusable
from headrace.core.plan import Plan, Work
from headrace.core.ports import ChatMessage, StepResult
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.net.engine_process import Built
from headrace.net.messages import Budget

EOS = 256
ANSWER = "The naïve café serves 東京 tea; it is open until late. "
SETTINGS = Settings(
    max_model_len=512,
    num_gpu_blocks=65,
    block_size=16,
    max_num_batched_tokens=256,
    max_num_seqs=32,
)
BUDGET = Budget(weights_bytes=1_000_000, kv_cache_bytes=2_000_000, kv_cache_dtype="u8")


class ByteTokenizer:
    """One token a byte of UTF-8, one for the end."""

    eos_token_id = EOS
    vocab_size = 257

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token for token in token_ids if token < EOS).decode(errors="replace")

    def apply_chat_template(self, messages: Sequence[ChatMessage]) -> str:
        return "".join(f"<{m.role}>{m.content}\n" for m in messages) + "<assistant>"


class ScriptedExecutor:
    """Answers `answer`, then the end token, in steps that take `step_s`."""

    def __init__(self, answer: bytes, step_s: float) -> None:
        self._answer = answer
        self._step_s = step_s

    def run(self, plan: Plan) -> StepResult:
        time.sleep(self._step_s)
        tokens = [self._next(chunk.work) if chunk.samples else None for chunk in plan.chunks]
        return StepResult(tokens, forward_ns=int(self._step_s * 1e9), sample_ns=1000)

    def forget(self, work: Work) -> None:
        pass

    def _next(self, work: Work) -> int:
        place = work.num_output_tokens
        if work.request.sampling.eos_token_id is None:
            return self._answer[place % len(self._answer)]
        return self._answer[place] if place < len(self._answer) else EOS


@dataclass(frozen=True)
class ScriptedRecipe:
    settings: Settings = SETTINGS
    answer: bytes = field(default=ANSWER.encode())
    step_s: float = 0.0

    def __call__(self) -> Built:
        return Built(Engine(self.settings), ScriptedExecutor(self.answer, self.step_s), BUDGET)


def unusable_recipe() -> Built:
    raise ModelUnusable("the file is cut off after 12 bytes", "fetch it again")


def crashing_recipe() -> Built:
    raise ZeroDivisionError("out of luck")
