"""Who is let in while the engine has more than it can do, and what the others are told.

    check(n) -> in, or Busy with a Retry-After         entered / prefilled / left keep the count

vLLM 0.32's two limits: `max_num_queued_reqs` bounds the requests that have not ended, and
`max_num_queued_tokens` the prompt tokens of those that have no token yet. vLLM sends no
Retry-After; here it is when a place opens, from how fast requests have left lately, and
everyone who is refused is told a later place than the one before.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import Busy

MOST_RETRY_AFTER_S = 60.0
"""Nobody is sent away for longer: OpenAI's own client ignores a longer time."""

MEMORY_S = 30.0
"""How far back the measured rate looks, as the time constant of its forgetting."""

REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many a server lets in, and for how long. None: no bound."""

    max_num_queued_reqs: int | None = None
    """Requests that have not ended; each answer of `n` counts."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of requests without a first token. One request may go beyond it."""
    queue_timeout_s: float | None = None
    """From arrival to the first step it takes part in."""
    request_timeout_s: float | None = None
    """From arrival to the last token."""


class DrainRate:
    """How many leave a backlog in a second while there is one; idle time does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inside = 0
        self._left = 0.0  # both fade with MEMORY_S
        self._busy_s = 0.0
        self._seen_at = clock()
        self._promised_at = self._seen_at

    def enter(self) -> None:
        if not self._inside:
            self._seen_at = self._clock()  # what came before was idle time
        self._inside += 1

    def leave(self) -> None:
        self._let_time_pass()
        self._inside -= 1
        self._left += 1.0

    def next_place_s(self) -> float:
        """How long until a place opens that nobody has been promised yet."""
        self._let_time_pass()
        # Nothing has left yet: it takes at least as long again as it has taken up to now.
        each_s = self._busy_s / max(self._left, 1.0)
        now = self._seen_at
        self._promised_at = min(max(now, self._promised_at) + each_s, now + MOST_RETRY_AFTER_S)
        return self._promised_at - now

    def _let_time_pass(self) -> None:
        now = self._clock()
        if self._inside:
            passed_s = now - self._seen_at
            faded = math.exp(-passed_s / MEMORY_S)
            self._left *= faded
            self._busy_s = self._busy_s * faded + passed_s
        self._seen_at = now


class Admission:
    """Counts who is inside. `on_refused` is told the limit that was hit."""

    def __init__(
        self,
        bounds: Bounds,
        on_refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bounds = bounds
        self.unfinished = 0
        self.queued_tokens = 0
        self._reserved = 0
        self._on_refused = on_refused
        self._ends = DrainRate(clock)
        self._prefills = DrainRate(clock)

    def check(self, n: int = 1) -> None:
        """Raises `Busy` when `n` more answers would be too many."""
        most = self.bounds.max_num_queued_reqs
        inside = self.unfinished + self._reserved
        if most is not None and inside + n > most:
            self._on_refused("max_num_queued_reqs")
            raise Busy(
                f"{inside} requests are being served or wait, and --max-num-queued-reqs is {most}",
                _whole_seconds(self._ends.next_place_s()),
            )
        most = self.bounds.max_num_queued_tokens
        if most is not None and self.queued_tokens >= most:
            self._on_refused("max_num_queued_tokens")
            raise Busy(
                f"prompts of {self.queued_tokens} tokens wait to be computed, and --max-num-queued-tokens "
                f"is {most}",
                _whole_seconds(self._prefills.next_place_s()),
            )

    def reserve(self, n: int) -> None:
        """Keep room for `n` answers, which will enter in turns. Raises `Busy`, as `check` does."""
        self.check(n)
        self._reserved += n

    def release(self, n: int = 1) -> None:
        """Of what was reserved: it enters now, or never."""
        self._reserved -= n

    def retry_after_s(self) -> float:
        """For those who waited in vain: when the next one who waits gets a first token."""
        return _whole_seconds(self._prefills.next_place_s())

    def entered(self, prompt_tokens: int) -> None:
        self.unfinished += 1
        self.queued_tokens += prompt_tokens
        self._ends.enter()
        self._prefills.enter()

    def prefilled(self, prompt_tokens: int) -> None:
        """It has its first token, or ended without one."""
        self.queued_tokens -= prompt_tokens
        self._prefills.leave()

    def left(self) -> None:
        self.unfinished -= 1
        self._ends.leave()


def _whole_seconds(seconds: float) -> float:
    """What a Retry-After can say: at least one second."""
    return min(float(max(1, math.ceil(seconds))), MOST_RETRY_AFTER_S)
