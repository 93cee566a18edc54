"""Our engine against OpenVINO GenAI's continuous batching: `python -m bench.engine [--json]`.

One process, one model, the same precision of arithmetic and KV cache, the same threads. Both take
requests of 128 prompt and 64 output tokens, all at once, at each concurrency in turn; the two
alternate, round by round, and change who is first, so that a noisy neighbour hits both. Every
round has prompts that neither has seen, so that no prefix is found.

    tables, then as the last line: {"tokens_per_s": ..., "ratio_vs_openvino_genai": ..., "plan_share": ...}
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from headrace.core.plan import Plan
from headrace.core.request import Request, SamplingParams
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.executor.graph import KvCacheDtype, plugin_properties
from headrace.executor.models import ModelFiles, locate
from headrace.executor.paged import PagedExecutor, load

# After headrace.executor, which keeps OpenVINO from reporting its import.
import openvino as ov  # isort: skip
import openvino_genai  # isort: skip

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
ROUNDS = {1: 11, 8: 7, 32: 5}
"""By concurrency: the shorter a round, the more a neighbour's noise weighs in it."""
NUM_BLOCKS = 400
MAX_NUM_BATCHED_TOKENS = 512
MAX_NUM_SEQS = 64
OURS, THEIRS = "headrace", "openvino_genai"

Prompts = list[list[int]]


@dataclass
class Shares:
    """Where our steps' time went, in nanoseconds."""

    schedule_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    step_ns: int = 0
    steps: int = 0


@dataclass
class Rounds:
    """Output tokens a second, round by round."""

    tokens_per_s: dict[str, list[float]] = field(default_factory=lambda: {OURS: [], THEIRS: []})
    shares: Shares = field(default_factory=Shares)

    def ratios(self) -> list[float]:
        """Of neighbours in time, so that what slows both cancels out."""
        pairs = zip(self.tokens_per_s[OURS], self.tokens_per_s[THEIRS], strict=True)
        return [ours / theirs for ours, theirs in pairs]


class Ours:
    """Engine and executor in this process, as `headrace serve` runs them in its own."""

    def __init__(self, files: ModelFiles, dtype: KvCacheDtype) -> None:
        model = load(files, dtype)
        self._executor = PagedExecutor(model, NUM_BLOCKS)
        self._engine = Engine(
            Settings(
                max_model_len=files.max_model_len,
                num_gpu_blocks=NUM_BLOCKS,
                block_size=model.block_size,
                max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
                max_num_seqs=MAX_NUM_SEQS,
            )
        )
        self._requests = 0

    def answer(self, prompts: Prompts, shares: Shares) -> int:
        """Runs all prompts to their end; returns the number of tokens that came out."""
        sampling = SamplingParams(OUTPUT_TOKENS, temperature=0.0)
        for prompt in prompts:
            now = time.monotonic_ns()
            self._requests += 1
            self._engine.submit(Request(f"r{self._requests}", tuple(prompt), sampling, now, now), now)
        tokens = 0
        while (plan := self._timed_plan(shares)) is not None:
            tokens += self._step(plan, shares)
        return tokens

    def _timed_plan(self, shares: Shares) -> Plan | None:
        start = time.monotonic_ns()
        plan = self._engine.plan(start)
        taken = time.monotonic_ns() - start
        shares.schedule_ns += taken
        shares.step_ns += taken
        return plan

    def _step(self, plan: Plan, shares: Shares) -> int:
        start = time.monotonic_ns()
        result = self._executor.run(plan)
        computed = time.monotonic_ns()
        outputs = self._engine.finish(plan, result, computed)
        for work in self._engine.take_ended():
            self._executor.forget(work)
        end = time.monotonic_ns()
        shares.schedule_ns += end - computed
        shares.forward_ns += result.forward_ns
        shares.sample_ns += result.sample_ns
        shares.step_ns += end - start
        shares.steps += 1
        return sum(len(output.token_ids) for output in outputs)


class Theirs:
    """OpenVINO GenAI's ContinuousBatchingPipeline under the same budgets."""

    def __init__(self, files: ModelFiles, dtype: KvCacheDtype) -> None:
        config = openvino_genai.SchedulerConfig()
        config.num_kv_blocks = NUM_BLOCKS
        config.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        config.max_num_seqs = MAX_NUM_SEQS
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(files.folder), config, "CPU", plugin_properties(dtype)
        )
        self._generation = openvino_genai.GenerationConfig(
            max_new_tokens=OUTPUT_TOKENS, ignore_eos=True, do_sample=False
        )

    def answer(self, prompts: Prompts) -> int:
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [self._generation] * len(inputs))
        return sum(len(result.m_generation_ids[0]) for result in results)


def compare(ours: Ours, theirs: Theirs, concurrency: int, rounds: int, chance: random.Random) -> Rounds:
    done = Rounds()
    for number in range(rounds):
        runs: list[tuple[str, Callable[[Prompts], int]]] = [
            (OURS, lambda prompts: ours.answer(prompts, done.shares)),
            (THEIRS, theirs.answer),
        ]
        for name, answer in runs if number % 2 == 0 else reversed(runs):
            prompts = [
                [chance.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in range(concurrency)
            ]
            start = time.monotonic()
            tokens = answer(prompts)
            seconds = time.monotonic() - start
            assert tokens == concurrency * OUTPUT_TOKENS, f"{name} gave {tokens} tokens"
            done.tokens_per_s[name].append(tokens / seconds)
    return done


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles, as a share of the median."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float((high - low) / 2 / median(values))


def print_table(results: dict[int, Rounds]) -> None:
    print(
        f"\nOutput tokens a second, {PROMPT_TOKENS} prompt + {OUTPUT_TOKENS} output tokens, median (spread)\n"
    )
    print(f"{'at once':>8}  {'headrace':>16}  {'openvino genai':>16}  {'ratio':>14}")
    for concurrency, done in results.items():
        cells = [f"{median(v):8.1f} (±{spread(v):4.0%})" for v in (*done.tokens_per_s.values(),)]
        ratio = f"{median(done.ratios()):6.2f} (±{spread(done.ratios()):4.0%})"
        print(f"{concurrency:>8}  {cells[0]:>16}  {cells[1]:>16}  {ratio:>14}")
    print("\nWhere our steps' time went\n")
    print(f"{'at once':>8}  {'step ms':>8}  {'schedule':>9}  {'forward':>8}  {'sample':>7}")
    for concurrency, done in results.items():
        shares = done.shares
        parts = [part / shares.step_ns for part in (shares.schedule_ns, shares.forward_ns, shares.sample_ns)]
        step_ms = shares.step_ns / shares.steps / 1e6
        print(f"{concurrency:>8}  {step_ms:8.2f}  {parts[0]:9.2%}  {parts[1]:8.1%}  {parts[2]:7.2%}")
    print()


def to_json(results: dict[int, Rounds]) -> str:
    def by_concurrency(value: Callable[[Rounds], float]) -> dict[str, float]:
        return {str(concurrency): round(value(done), 4) for concurrency, done in results.items()}

    names = (OURS, THEIRS)
    total = [
        sum(getattr(done.shares, part) for done in results.values()) for part in ("schedule_ns", "step_ns")
    ]
    return json.dumps(
        {
            "tokens_per_s": {n: by_concurrency(lambda d, n=n: median(d.tokens_per_s[n])) for n in names},
            "tokens_per_s_spread": {
                n: by_concurrency(lambda d, n=n: spread(d.tokens_per_s[n])) for n in names
            },
            "ratio_vs_openvino_genai": by_concurrency(lambda d: median(d.ratios())),
            "ratio_spread": by_concurrency(lambda d: spread(d.ratios())),
            "plan_share": round(total[0] / total[1], 5),
            "plan_share_by_concurrency": by_concurrency(lambda d: d.shares.schedule_ns / d.shares.step_ns),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, help="at every concurrency, instead of " + str(ROUNDS))
    parser.add_argument("--kv-cache-dtype", choices=[d.value for d in KvCacheDtype], default="auto")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args()
    files, dtype = locate(options.model), KvCacheDtype(options.kv_cache_dtype)
    ours, theirs, chance = Ours(files, dtype), Theirs(files, dtype), random.Random(0)
    compare(ours, theirs, 8, 1, chance)  # the first pass of each compiles kernels
    results = {
        concurrency: compare(ours, theirs, concurrency, options.rounds or rounds, chance)
        for concurrency, rounds in ROUNDS.items()
    }
    print_table(results)
    if options.json:
        print(to_json(results))


if __name__ == "__main__":
    main()
