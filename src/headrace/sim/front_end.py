"""What lies between a client and its replica's engine, in virtual time: the way in.

A front end takes requests one after another, and each replica has one of its own. The way back
(`FrontEnd.answer_ns`) is the same for all tokens, since what a step brings is sent at once; what
sending costs the machine is in its steps.
"""

from headrace.core.cost import FrontEnd


class WayIn:
    """One replica's front end. None: requests are with the engine when they are due."""

    def __init__(self, front_end: FrontEnd | None) -> None:
        self._front_end = front_end
        self._free_ns = 0

    def handed_ns(self, prompt_tokens: int, arrived_ns: int) -> int:
        """When the engine gets a request that arrives now, after all that came before it."""
        if self._front_end is None:
            return arrived_ns
        self._free_ns = max(self._free_ns, arrived_ns) + self._front_end.inward_ns(prompt_tokens)
        return self._free_ns
