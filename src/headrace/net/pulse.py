"""Whether the engine moves, judged by what it says. No clock: it is told the time.

    sent --> taken --> stepped, stepped, ... --> stepped without tokens: it rests

An engine that rests has nothing to say. One that works is silent for as long as a step takes, which
can be minutes; how long a step may take is known from the fastest ones.
"""

LEAST_PATIENCE_S = 30.0
"""So long nobody is worried: the machine may have been busy with something else."""

UNKNOWN_PATIENCE_S = 600.0
"""Before the first step has been seen."""

SLOWNESS = 20.0
"""A token deep in a long context costs several times what it costs at the beginning, and a busy machine
is several times slower than a quiet one."""


class Pulse:
    """What the engine has been told, and when it was last heard of."""

    def __init__(self, most_tokens: int, now_s: float) -> None:
        self._most_tokens = most_tokens
        self._heard_at = now_s
        self._rests = True
        self._sent = self._taken = 0
        self._untaken: dict[str, int] = {}  # in the order of their numbers, which count what was sent
        self._token_s: float | None = None  # of the step that took the least for a token

    @property
    def untaken(self) -> int:
        """Requests that are on their way: sent, and still wanted, but not before the scheduler."""
        return len(self._untaken)

    def sent(self, request_id: str, now_s: float) -> None:
        """A request is sent to the engine."""
        if self._rests:
            self._heard_at = now_s
        self._rests = False
        self._sent += 1
        self._untaken[request_id] = self._sent

    def left(self, request_id: str) -> None:
        """Nobody waits for it any more."""
        self._untaken.pop(request_id, None)

    def taken(self, number: int, now_s: float) -> None:
        """The first `number` that were sent are before the scheduler."""
        self._heard_at, self._taken = now_s, number
        while self._untaken and next(iter(self._untaken.values())) <= number:
            del self._untaken[next(iter(self._untaken))]

    def stepped(self, tokens: int, took_s: float, now_s: float) -> None:
        """A step of so many tokens has ended; without any, the engine has come to rest."""
        self._heard_at = now_s
        if not tokens:
            self._rests = self._taken == self._sent
        elif self._token_s is None or took_s / tokens < self._token_s:
            self._token_s = took_s / tokens

    def lost(self, now_s: float) -> None:
        """The next engine begins anew."""
        self._heard_at, self._rests = now_s, True
        self._sent = self._taken = 0
        self._untaken.clear()

    def silent_s(self, now_s: float) -> float:
        """How long it has said nothing although it has something to do."""
        return 0.0 if self._rests else now_s - self._heard_at

    @property
    def patience_s(self) -> float:
        """How long the largest step may take before something is wrong."""
        if self._token_s is None:
            return UNKNOWN_PATIENCE_S
        return max(LEAST_PATIENCE_S, SLOWNESS * self._most_tokens * self._token_s)
