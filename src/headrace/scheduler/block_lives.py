"""How long KV blocks live, lie idle and are found again: a sample, for those who size the cache.

    handed out --|-- found as a prefix --|-- found --|-- nobody asks ------|-- handed out anew
                 |<----- reuse gap ---->|<-- gap -->|<------ idle ------->|
                 |<---------------------- lifetime ----------------------->|

Which blocks are looked at is decided when they are handed out: each `1 / share`th or so, spread so
evenly by the golden ratio that no length of prompt always falls on its first block. Chance is not
at home in this room. A reuse is told when it happens; in vLLM when the block is handed out anew, if ever.
"""

from collections.abc import Sequence

from headrace.core.output import BlockNews

_GOLDEN = 0.6180339887498949


class BlockLives:
    """The blocks that are looked at. Told the time by whoever drives it."""

    def __init__(self, share: float) -> None:
        self.now_ns = 0
        self._share = share
        self._place = 0.0  # in [0, 1): a block is looked at when it falls below `share`
        self._born_ns: dict[int, int] = {}
        self._used_ns: dict[int, int] = {}
        self._news = BlockNews()

    def handed_out(self, block_ids: Sequence[int]) -> None:
        """The lives of these end, and new ones begin."""
        for block_id in block_ids:
            born_ns = self._born_ns.pop(block_id, None)
            if born_ns is not None:
                self._news.lifetimes_ns.append(self.now_ns - born_ns)
                self._news.idle_ns.append(self.now_ns - self._used_ns.pop(block_id))
            self._place = (self._place + _GOLDEN) % 1.0
            if self._place < self._share:
                self._born_ns[block_id] = self._used_ns[block_id] = self.now_ns

    def found(self, block_ids: Sequence[int]) -> None:
        """These hold a prefix that somebody asked for."""
        for block_id in block_ids:
            used_ns = self._used_ns.get(block_id)
            if used_ns is not None:
                self._news.reuse_gaps_ns.append(self.now_ns - used_ns)
                self._used_ns[block_id] = self.now_ns

    def take_news(self) -> BlockNews | None:
        """What has happened since the last call; None: nothing."""
        news = self._news
        if not news.lifetimes_ns and not news.reuse_gaps_ns:
            return None
        self._news = BlockNews()
        return news
