"""How much of its prompt a request shares with an earlier one, in bounded memory.

A block is shared when its id came before, with a cache that forgets nothing: an upper bound for every
real one. Beyond `MOST_IDS` different ids only a share of them is watched, chosen by a hash
(Wegman's adaptive sampling; Flajolet 1990), and each hit of these stands for as many as were not watched.
"""

MOST_IDS = 4_000_000
_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class SharedPrefixes:
    """Asked about one request after another."""

    def __init__(self, most_ids: int = MOST_IDS) -> None:
        self._most_ids = most_ids
        self._seen = set[int]()
        self._unwatched_bits = 0
        self.blocks = 0
        self.hits = 0.0

    def shared_tokens(self, ids: tuple[int, ...], prompt_tokens: int, block_tokens: int) -> int:
        """Of a prompt, how many; its last token is computed in any case, as something must be."""
        if self._unwatched_bits:
            watched = [each for each in ids if self._is_watched(each)]
            fresh = [each for each in watched if each not in self._seen]
            hits = (len(watched) - len(fresh)) << self._unwatched_bits
        else:
            fresh = [each for each in ids if each not in self._seen]
            hits = len(ids) - len(fresh)
        self._seen.update(fresh)
        if len(self._seen) > self._most_ids:
            self._watch_fewer()
        self.blocks += len(ids)
        self.hits += hits
        return min(hits * block_tokens, prompt_tokens - 1)

    def _is_watched(self, prefix_id: int) -> bool:
        return not (prefix_id * _MIX & _WORD) >> (64 - self._unwatched_bits)

    def _watch_fewer(self) -> None:
        self._unwatched_bits += 1
        self._seen = {each for each in self._seen if self._is_watched(each)}
