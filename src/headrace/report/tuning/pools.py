"""Short and long requests on servers of their own, in words: what the twin says it would take.

Tuning --pool_words--> a sentence for the terminal and the page    PoolAdvice --pool_rows--> the page's table
"""

from collections.abc import Iterator

from headrace.core.conclusion import Pool
from headrace.report.tuning.tuning import PoolAdvice, Tuning
from headrace.report.tuning.words import load_words, named_words


def pool_words(tuning: Tuning) -> str:
    """What becomes of the servers for a load; empty where nobody asked the twin."""
    advice = tuning.pools
    if advice is None:
        return ""
    found = advice.found
    kinds = (
        f"in the twin, prompts up to {advice.bound_tokens:,} tokens and longer ones on servers of their own"
    )
    if found.share is None:
        return f"{kinds} are no way: {found.why}"
    said = f"{kinds} take {found.why}"
    if found.pays_from is None:
        return f"{said}: not worth it"
    return f"{said}, a whole one less from a fleet of {found.pays_from} on (not proven)"


def pool_rows(tuning: Tuning, advice: PoolAdvice) -> Iterator[tuple[str, ...]]:
    """One for all together, then one for each pool: what it gets, settings, what one server carries."""
    shares = {"short": advice.short_share, "long": 1 - advice.short_share}
    for pool in (advice.found.together, *advice.found.apart):
        share = shares.get(pool.name, 1.0)
        yield (
            _named(pool, advice),
            f"{share:.0%}",
            named_words(pool.overrides),
            load_words(tuning, share * pool.capacity),
            f"{advice.found.together.capacity / pool.capacity:.2f}",
        )


def _named(pool: Pool, advice: PoolAdvice) -> str:
    if pool.name == "short":
        return f"short, up to {advice.bound_tokens:,} tokens"
    return "long" if pool.name == "long" else "all together"
