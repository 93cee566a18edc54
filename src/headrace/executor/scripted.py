"""An executor and a tokenizer for tests: no model, and suspicious of what they are handed.

The next token of a work follows from its own tokens and seed alone, so any batching must give the
same answers. The fake KV cache holds, for every slot of every block, a digest of the *whole* text
up to that token, as real keys and values do: a block table that names a wrong, stale, overwritten
or unfinished block is found out at once, where a real model would merely talk nonsense.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.core.plan import Chunk, Plan, Status, Work
from headrace.core.ports import Chat, StepResult
from headrace.core.request import Grammar
from headrace.executor.adjust import changes_logits
from headrace.executor.grammars import Grammars, Vocabulary
from headrace.executor.prompt_logprobs import PromptLogprobs, positions
from headrace.executor.sampler import Sampler

_MASK = (1 << 62) - 1
_EMPTY = -1
_CERTAIN = np.float32(60.0)


class WrongPlan(AssertionError):
    """The plan would have made a real model read or overwrite the wrong keys and values."""


@dataclass(slots=True)
class _Digests:
    """`values[i]` stands for the text up to and with token i."""

    state: int = 1469598103934665603
    values: list[int] = field(default_factory=list[int])

    def extend(self, token_ids: Sequence[int], length: int) -> None:
        for token in token_ids[len(self.values) : length]:
            self.state = ((self.state ^ (token + 1)) * 1099511628211) & _MASK
            self.values.append(self.state)


class ScriptedExecutor:
    """Says what `script` says, else letters and spaces, and `eos_token_id` as output number `eos_after`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 32,
        *,
        step_s: float = 0.0,
        eos_after: int | None = None,
        script: Callable[[Work], int] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._step_s = step_s
        self._eos_after = eos_after
        self._script = script
        self._kv: NDArray[np.int64] = np.full((num_blocks, block_size), _EMPTY, np.int64)
        self._digests: dict[str, _Digests] = {}
        self._sampler = Sampler(ScriptedTokenizer.vocab_size, _GRAMMARS)
        self._prompts = PromptLogprobs(ScriptedTokenizer.vocab_size)

    def run(self, plan: Plan) -> StepResult:
        start_ns = time.monotonic_ns()
        seen: set[str] = set()
        # Works that were cancelled since they were planned have no blocks any more, and no reader.
        alive = [chunk for chunk in plan.chunks if chunk.work.status is not Status.FINISHED]
        for chunk in alive:
            self._check_shape(chunk, seen)
        for chunk in alive:  # all write before any reads, as in a real pass
            self._write(chunk)
        for chunk in alive:
            self._read(chunk)
        tokens = [self._next_token(chunk.work) if chunk.samples else None for chunk in plan.chunks]
        result = StepResult(tokens)
        if places := [
            place for place, chunk in enumerate(plan.chunks) if chunk.samples and _asks(chunk.work)
        ]:
            rows = [self._logits(plan.chunks[place].work, tokens[place]) for place in places]
            self._sampler.draw(np.stack(rows), plan, places, result)
        self._look_back(plan, result)
        if self._step_s:
            time.sleep(self._step_s)
        result.forward_ns = time.monotonic_ns() - start_ns
        return result

    def forget(self, work: Work) -> None:
        self._digests.pop(work.request.request_id, None)
        self._sampler.forget(work)
        self._prompts.forget(work)

    @property
    def num_remembered(self) -> int:
        """Works that have not been forgotten: 0 once everything has ended."""
        return len(self._digests) + self._sampler.num_remembered + self._prompts.num_remembered

    def _check_shape(self, chunk: Chunk, seen: set[str]) -> None:
        work, end = chunk.work, chunk.start + chunk.tokens
        if work.request.request_id in seen:
            raise WrongPlan(f"{work} is twice in one plan")
        seen.add(work.request.request_id)
        if chunk.tokens < 1 or chunk.start < 0 or end > len(work.token_ids):
            raise WrongPlan(f"tokens {chunk.start} to {end} of {work}, which has {len(work.token_ids)}")
        if chunk.samples != (end == len(work.token_ids)):
            raise WrongPlan(f"{work} samples: {chunk.samples}, after {end} of {len(work.token_ids)} tokens")
        if len(work.block_ids) * self.block_size < end:
            raise WrongPlan(f"{work} has {len(work.block_ids)} blocks of {self.block_size} for {end} tokens")
        if not all(0 < block < self.num_blocks for block in work.block_ids):
            raise WrongPlan(f"{work} names a block outside 1 to {self.num_blocks - 1}: {work.block_ids}")
        if len(set(work.block_ids)) != len(work.block_ids):
            raise WrongPlan(f"{work} names a block twice: {work.block_ids}")

    def _write(self, chunk: Chunk) -> None:
        end = chunk.start + chunk.tokens
        digests = self._digests.setdefault(chunk.work.request.request_id, _Digests())
        digests.extend(chunk.work.token_ids, end)
        places = np.arange(chunk.start, end)
        blocks = np.array(chunk.work.block_ids, np.int64)[places // self.block_size]
        self._kv[blocks, places % self.block_size] = digests.values[chunk.start : end]

    def _read(self, chunk: Chunk) -> None:
        end = chunk.start + chunk.tokens
        wanted = np.array(self._digests[chunk.work.request.request_id].values[:end], np.int64)
        table = chunk.work.block_ids[: -(-end // self.block_size)]
        wrong = np.flatnonzero(self._kv[table].ravel()[:end] != wanted)
        if wrong.size:
            place = int(wrong[0])
            raise WrongPlan(
                f"{chunk.work}: block {table[place // self.block_size]} does not hold token {place} "
                f"of its text ({wrong.size} of {end} tokens are wrong; chunk {chunk.start} to {end})"
            )

    def _next_token(self, work: Work) -> int:
        if self._script is not None:
            return self._script(work)
        sampling = work.request.sampling
        drawn = work.num_output_tokens
        eos = sampling.eos_token_id
        if eos is not None and self._eos_after == drawn and drawn >= sampling.min_tokens:
            return eos
        digests = self._digests.get(work.request.request_id, _Digests())
        mixed = (digests.state ^ (sampling.seed * 0x9E3779B1)) & _MASK
        letter = (mixed ^ (mixed >> 29)) % 27
        return ord(" ") if letter == 26 else ord("a") + letter

    def _look_back(self, plan: Plan, result: StepResult) -> None:
        """How likely prompts were, for those who ask."""
        for chunk in plan.chunks:
            if wanted := positions(chunk):
                digests = self._digests[chunk.work.request.request_id].values
                rows = [_opinion(digests[position]) for position in wanted]
                self._prompts.take(chunk, np.stack(rows))
        self._prompts.give(plan, result)

    def _logits(self, work: Work, token: int | None) -> NDArray[np.float32]:
        """Of a model that is all but certain of `token`, and has some opinion of every other one."""
        row = _opinion(self._digests.get(work.request.request_id, _Digests()).state)
        row[token] = _CERTAIN
        return row


def _opinion(digest: int) -> NDArray[np.float32]:
    """Logits after the text that `digest` stands for."""
    return np.random.Generator(np.random.Philox(key=digest)).random(ScriptedTokenizer.vocab_size, np.float32)


def _asks(work: Work) -> bool:
    """It wants more than the next token as it is."""
    params = work.request.sampling
    return params.num_logprobs is not None or changes_logits(params)


class ScriptedTokenizer:
    """One token a byte of UTF-8, then `<|end|>`, the only special token."""

    eos_token_id = 256
    vocab_size = 257

    def __init__(self, begins: Sequence[int] = ()) -> None:
        """`begins`: special tokens before every text."""
        self._begins = tuple(begins)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        tokens = [*self._begins] if add_special_tokens else []
        for place, part in enumerate(text.split("<|end|>")):
            tokens += [self.eos_token_id] * (place > 0)
            tokens += part.encode("utf-8", "replace")
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        special = b"" if skip_special_tokens else b"<|end|>"
        pieces = [
            bytes((token,)) if 0 <= token < 256 else special if token == self.eos_token_id else b""
            for token in token_ids
        ]
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<|end|>" if token_id == self.eos_token_id else bytes((token_id,))

    takes_tools = True

    def apply_chat_template(self, chat: Chat) -> str:
        tools = f"tools: {json.dumps(chat.tools)}\n" if chat.tools else ""
        turns = "\n".join(
            " ".join((f"{turn.role}:", turn.content, *map(json.dumps, turn.more.values())))
            for turn in chat.messages
        )
        end = "" if chat.continue_final_message else "\nassistant: " * chat.add_generation_prompt
        return tools + turns + end

    def check_grammar(self, grammar: Grammar) -> None:
        _GRAMMARS.check(grammar)


_GRAMMARS = Grammars(
    lambda: Vocabulary(
        tokens=[*(bytes((byte,)) for byte in range(256)), b"<|end|>"],
        special_token_ids=(ScriptedTokenizer.eos_token_id,),
        eos_token_id=ScriptedTokenizer.eos_token_id,
        encode=ScriptedTokenizer().encode,
    )
)
