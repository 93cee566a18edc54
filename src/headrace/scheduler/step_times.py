"""How long steps take, learnt from those that came back: enough to say how much prompt fits into one.

    beside decodes, the last steps took t for p tokens of prompts;  a token more costs `ns_per_token` at most

    tokens within a goal  =  p + (goal - t) / ns_per_token          at t = goal it stays where it is

`ns_per_token` is the time of steps with prompts by their prompt tokens, decodes and all, so it is too high
rather than too low, and the correction goes too slowly rather than too far. Nothing is learnt from steps that
only decode: a simulation takes those in one go.
"""

REMEMBERED = 0.8
"""Weight of what was known of a token's cost when one more step comes back."""
REMEMBERED_OF_MIXED = 0.3
"""The same for steps with decodes and prompts: their time changes with every request that comes or goes."""


class StepTimes:
    """Discounted sums over steps. Arithmetic in a fixed order, so a simulation is the same every time."""

    def __init__(self) -> None:
        self._ns = self._tokens = 0.0
        self._mixed_ns = self._mixed_tokens = self._mixed_steps = 0.0

    @property
    def ns_per_token(self) -> float:
        """Of a prompt, at most; 0.0 before anything is known."""
        return self._ns / self._tokens if self._tokens else 0.0

    def learn(self, decodes: int, prefill_tokens: int, took_ns: int) -> None:
        """A step with `prefill_tokens` of prompts came back."""
        self._ns = REMEMBERED * self._ns + took_ns
        self._tokens = REMEMBERED * self._tokens + prefill_tokens
        if decodes:
            self._mixed_ns = REMEMBERED_OF_MIXED * self._mixed_ns + took_ns
            self._mixed_tokens = REMEMBERED_OF_MIXED * self._mixed_tokens + prefill_tokens
            self._mixed_steps = REMEMBERED_OF_MIXED * self._mixed_steps + 1.0

    def prefill_tokens_within(self, goal_ns: float) -> int | None:
        """How many tokens of prompts a step with decodes may have to take `goal_ns`; None: unknown."""
        if not self.ns_per_token:
            return None
        if not self._mixed_steps:
            return int(goal_ns / self.ns_per_token)
        tokens, took_ns = self._mixed_tokens / self._mixed_steps, self._mixed_ns / self._mixed_steps
        return max(0, int(tokens + (goal_ns - took_ns) / self.ns_per_token))
