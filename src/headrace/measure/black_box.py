"""A cost model of any OpenAI-compatible server, from what its client sees: about two minutes.

    requests alone, of several lengths   TTFT by prompt length        -> steps that compute a prompt
    crowds, at short and long contexts   ITL by concurrency, context  -> steps that decode

It cannot see steps, so it takes a lone request's TTFT for one step, the way there and back included, and a
crowd's common gap between tokens for another. Prompts are kept short enough to fit into one step of vLLM's.
"""

from collections.abc import Callable, Mapping, Sequence

from headrace.core.cost import StepShape
from headrace.core.exchange import Arrival
from headrace.core.timeline import Timeline
from headrace.executor.cost import FittedCost, fit
from headrace.measure.serving import Send, crowd, step_ns_of, whole

ALONE_WORDS = (8, 30, 60, 120, 250, 500, 900, 1400)
ALONE_TOKENS = 2
CROWDS = ((1, 12), (2, 12), (4, 12), (8, 12), (16, 12), (32, 12), (1, 1000), (4, 600), (8, 400), (16, 200))
"""How many at once, and words of their prompts."""
WARM_UP = (8, 12)
REPEATS = 2

Record = tuple[StepShape, int]
Say = Callable[[str], None]


def calibrate_server(send: Send, provenance: Mapping[str, str], seed: int, say: Say) -> FittedCost:
    """Raises `TargetFailed` when a request fails."""
    send(crowd(WARM_UP[0], seed + 1, words=WARM_UP[1]))
    records: list[Record] = []
    for again in range(REPEATS):
        base = seed + 100_000 * (again + 1)
        for number, words in enumerate(ALONE_WORDS):
            (arrival,) = crowd(1, base + number, words=words, tokens=ALONE_TOKENS)
            records.append(_prompt_step(send, arrival))
        for number, (count, words) in enumerate(CROWDS):
            shape, ns = step_ns_of(send(crowd(count, base + 1_000 * (number + 1), words=words)))
            records.append((shape, int(ns)))
        say(f"round {again + 1} of {REPEATS}: {len(records)} kinds of load measured")
    return fit(records, provenance)


def _prompt_step(send: Send, arrival: Arrival) -> Record:
    (timeline,) = whole(send([arrival]))
    return _shape(timeline), int(1e9 * timeline.ttft_s)


def _shape(timeline: Timeline) -> StepShape:
    """What it computed: a prefix that the server knew, such as the chat template's, was not."""
    cached = timeline.cached_tokens
    tokens = timeline.prompt_tokens - cached
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    return StepShape(0, 0, 1, tokens, cached, pairs, sampled_seqs=1)


def words_of(cost: FittedCost) -> Sequence[str]:
    """How far it may be trusted, for a person."""
    residual = cost.residual
    return (
        f"{residual.observations} loads were measured.",
        f"Half of them are told within {residual.median:.1%}, 19 of 20 within {residual.p95:.1%}.",
        "How much its KV cache holds cannot be seen: simulate with --num-gpu-blocks-override N.",
    )
