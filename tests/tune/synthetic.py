"""A tiny model of a noisy server: what a search is judged by, since here the truth is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.core.bill import CAUSES, Cause
from headrace.core.errors import TargetFailed
from headrace.core.measurement import Measurement
from headrace.core.ports import Overrides
from headrace.core.timeline import Failure, FailureKind, Timeline
from headrace.core.trial import Trial

DEFAULT_TOKENS = 2048


def step_tokens(overrides: Overrides) -> int:
    """How many of a long prompt's tokens a short request waits behind: the mechanism, in one line."""
    tokens = int(overrides.get("max_num_batched_tokens", DEFAULT_TOKENS))
    cap = int(overrides.get("long_prefill_token_threshold", 0))
    return min(tokens, cap) if cap else DEFAULT_TOKENS  # a smaller budget alone does not help


@dataclass
class SyntheticServer:
    """`wait_s(overrides)` is the truth; runs differ by a factor exp(noise), requests within one too."""

    wait_s: Callable[[Overrides], float] = field(default=lambda o: 0.1 + step_tokens(o) / 650)
    run_noise: float = 0.15
    seed: int = 0
    run_takes_s: float = 40.0
    refuses: Callable[[Overrides], bool] = field(default=lambda _: False)
    loses: Callable[[Overrides], int] = field(default=lambda _: 0)
    throughput: Callable[[Overrides], float] = field(default=lambda _: 1.0)
    bill: Mapping[Cause, float] | None = None
    now: float = 0.0
    asked: list[Overrides] = field(default_factory=list[Overrides])

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.now

    def judge(self, overrides: Overrides) -> Measurement:
        self.asked.append(overrides)
        if self.refuses(overrides):
            self.now += 2.0
            raise TargetFailed("the server ended before it was ready: out of memory", "buy more")
        self.now += self.run_takes_s
        wait_s = self.wait_s(overrides) * float(np.exp(self._chance.normal(0, self.run_noise)))
        waits = np.sort(wait_s * self._chance.uniform(0.1, 1.0, size=36))
        answered = [self._line(f"short-{i}", "short", float(wait)) for i, wait in enumerate(waits)]
        answered += [self._line("long-0", "long", 9.0), self._line("long-1", "long", 11.0)]
        lost = [
            Failure(f"short-x{i}", "short", 40, 1.0, 2.0, FailureKind.CUT, "cut off")
            for i in range(self.loses(overrides))
        ]
        return Measurement(
            target="synthetic",
            model="none",
            settings=overrides,
            workload="38 requests",
            seed=self.seed,
            duration_s=30.0 / self.throughput(overrides),
            results=(*answered, *lost),
        )

    def _line(self, request_id: str, request_class: str, ttft_s: float) -> Timeline:
        bill = None
        if self.bill is not None:
            whole = sum(self.bill.values())
            bill = {cause: ttft_s * self.bill.get(cause, 0.0) / whole for cause in CAUSES}
        tokens = tuple(1.0 + ttft_s + 0.05 * i for i in range(4))
        return Timeline(request_id, request_class, 40, 1.0, 1.0, tokens, "length", bill_s=bill)


@dataclass
class Notes:
    """An observer that remembers."""

    started: list[tuple[int, int | None]] = field(default_factory=list[tuple[int, int | None]])
    trials: list[Trial] = field(default_factory=list[Trial])

    def starting(self, overrides: Overrides, number: int, of: int | None) -> None:
        self.started.append((number, of))

    def ended(self, trial: Trial) -> None:
        self.trials.append(trial)
