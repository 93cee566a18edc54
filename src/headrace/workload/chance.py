"""Random streams that give the same numbers for ever.

Each purpose has a stream of its own, named by a path, so that changing one class of requests, or its
lengths, leaves everything else as it was, to the byte. NumPy promises that its `RandomState` draws the
same numbers in every version (its `Generator` promises no such thing).
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.random import MT19937, RandomState, SeedSequence
from numpy.typing import NDArray

CHUNK = 1024
"""Numbers drawn at once. Part of every seeded workload: another size would be other numbers."""


def stream(seed: int, *path: str | int) -> RandomState:
    named = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=16).digest()
    return RandomState(MT19937(SeedSequence(int.from_bytes(named, "little"))))


def forever(draw: Callable[[int], NDArray[np.float64]]) -> Iterator[float]:
    """What `draw` gives, one by one."""
    while True:
        yield from draw(CHUNK).tolist()
