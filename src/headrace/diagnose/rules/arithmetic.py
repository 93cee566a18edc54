"""What the numbers of one report say of each other, whatever words stand beside them."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import Quantity, quantities
from headrace.diagnose.rules.support import concurrency, fact, out_of_memory, prompt_tokens, start_failed
from headrace.diagnose.sizes import active_parameters_of, card_of, hardware_text, model_of, tensor_parallel
from headrace.diagnose.sweep import sweep_of

LEAST_PROMPT = 2000
LEAST_OWN_S = 0.5
"""Of a prefill alone, from which prefills behind each other are worth naming."""
OVER = 1.25
"""Offered over served, from which a queue grows for as long as the load lasts."""
LATE_S = 2.0
A_BURST = 20.0
"""Offered over served, from which all have come before the first have ended: their queue is what is left."""


def prefills_take_turns(e: Evidence) -> Iterator[Finding]:
    """N prompts that come together are read one after the other: the last one's first token takes N times the
    own one, and their mean half of that, if the card reads as fast as it can all the time.
    """
    by_load = dict(_ttft_by_load(e))
    longest = max(prompt_tokens(e), default=0.0)
    if len(by_load) < 2 or longest < LEAST_PROMPT or start_failed(e) or load_of(e).peak_kv >= 0.9:
        return
    few, many = min(by_load), max(by_load)
    own, late = by_load[few], by_load[many].last
    turns = late / own.last * few / many if own.last > 0 else 0.0
    if many >= 4 * few and own.last / few >= LEAST_OWN_S and 0.2 <= turns <= 1.5:
        yield Finding(
            Label.COMPUTE,
            f"{many:g} prompts of {longest:,.0f} tokens are read one after the other: alone one takes "
            f"{own.last:.1f} s ({longest / own.last:,.0f} tokens a second), together {late:.1f} s",
            (fact(e, own.name), Fact(f"{late:g} s at {many:g} at once")),
            Advice(
                "prefix caching of what repeats, shorter prompts, more or faster cards; settings of the "
                "scheduler only change who waits",
                "TTFT in proportion",
                "cards",
                "prompt tokens a second while requests wait: level means that it is all the card reads",
            ),
            Severity.WARNING,
            0.8,
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.BAD_FLAGS}),
        )


SOONER_THAN_LOAD = 3.0
"""So many times more than the load TTFT grows where requests wait for others' answers to end."""
LATE_FOR_ANSWERS_S = 10.0


def waits_for_answers(e: Evidence) -> Iterator[Finding]:
    """Prompts that are read one after the other make TTFT grow as their number does. Where it grows far more,
    most of them wait for a slot, and that is for whole answers.
    """
    by_load = dict(_ttft_by_load(e))
    if len(by_load) < 2 or start_failed(e) or load_of(e).peak_kv >= 0.9:
        return
    few, many = min(by_load), max(by_load)
    own, late = by_load[few].last, by_load[many].last
    if many < 4 * few or own <= 0 or late < LATE_FOR_ANSWERS_S or late / own < SOONER_THAN_LOAD * many / few:
        return
    yield Finding(
        Label.QUEUEING,
        f"{many / few:,.0f} times the requests at once and {late / own:,.0f} times the TTFT: most wait until "
        "others' answers have ended",
        (fact(e, by_load[few].name), fact(e, by_load[many].name)),
        Advice(
            "no more at once than run at once (a limit at the client or gateway), --max-num-seqs as far as "
            "KV allows, replicas for the rest",
            "TTFT near that of the smaller load",
            "a queue that is seen where it can be told",
            "running at --max-num-seqs while the others wait",
        ),
        Severity.WARNING,
        0.7,
        rivals=("a full KV pool, if running stands below --max-num-seqs: kv_cache_usage_perc",),
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
    )


def _ttft_by_load(e: Evidence) -> Iterator[tuple[float, Quantity]]:
    """(requests at once, TTFT) of names that end in a concurrency."""
    for q in quantities(e):
        if q.what == "ttft" and not q.is_rate and q.stat not in {"p99", "max", "p95"}:
            for word in q.situation:
                if word.startswith("c") and word[1:].isdigit():
                    yield float(word[1:]), q


def more_offered_than_served(e: Evidence) -> Iterator[Finding]:
    """Requests that come faster than they end wait for longer and longer: TTFT is then the length of the
    queue, and no setting of one request's speed shortens it.
    """
    offered = e.number("workload:request_rate", "workload:rps", "workload:qps", "client:request_rate")
    offered = offered or e.number("client:offered_req_s", "client:offered_rps", "workload:offered_req_s")
    served = next((q.last for q in quantities(e, ("client:",)) if _is_requests(q)), None)
    late = [q for q in quantities(e, ("client:",)) if q.what == "ttft" and not q.is_rate and q.last > LATE_S]
    load = load_of(e)
    if not (offered and served and late) or start_failed(e) or out_of_memory(e):
        return
    if offered < OVER * served or load.peak_kv >= 0.9 or (load.waiting and not load.peak_waiting):
        return
    burst = offered > A_BURST * served
    yield Finding(
        Label.QUEUEING if burst else Label.COMPUTE,
        f"{offered:g} requests a second are offered and {served:g} served: the queue grows, TTFT is its "
        f"length",
        (fact(e, late[0].name), Fact(f"{offered:g} offered, {served:g} served")),
        Advice(
            f"no more than {served:g} requests a second for each such server: replicas or cards for the "
            f"rest; "
            "TTFT is worth tuning below that rate only",
            "a queue that empties",
            "cards",
            "TTFT at nine tenths of the served rate",
        ),
        Severity.WARNING,
        0.65,
        also=(Label.COMPUTE if burst else Label.QUEUEING,),
        rivals=("a cap on what runs (max_num_seqs) or a full KV pool: running, waiting and KV usage tell",),
        explains=frozenset({Label.UNDETERMINED, Label.CLIENT}),
    )


def _is_requests(q: Quantity) -> bool:
    name = q.name.lower()
    meant = any(part in name for part in ("offered", "target", "asked"))
    return (
        q.is_rate and not meant and any(part in name for part in ("request_throughput", "req", "rps", "qps"))
    )


def kv_is_read_at_each_token(e: Evidence) -> Iterator[Finding]:
    """Decoding reads the whole context of every sequence at every token: with many sequences that is more
    than the weights, and tokens a second fall as contexts grow.
    """
    sweep = sweep_of(e)
    rate = sweep.column("rates") if sweep is not None else None
    if sweep is None or rate is None or sweep.varied.kind != "prompts" or sweep.column("ttft") is not None:
        return
    prefill = any(word in rate.name for word in ("prefill", "prompt", "input"))
    if not prefill and sweep.varied.grown >= 4 and 0 < rate.grown < 0.6:
        yield Finding(
            Label.MEMORY_BANDWIDTH,
            f"{sweep.varied.grown:g} times the context leaves {rate.grown:.2f} of the tokens a second: each "
            "token reads the KV of its whole sequence",
            (sweep.varied.row(), rate.row()),
            Advice(
                "--kv-cache-dtype fp8, a model with fewer KV heads (GQA, MLA), fewer sequences at long "
                "context, "
                "more cards",
                "tokens a second in proportion to the bytes",
                "a little quality",
                "DRAM activity (DCGM) at long context",
            ),
            Severity.NOTE,
            0.7,
            also=(Label.KV_CAPACITY,) if (concurrency(e) or 0) >= 8 else (),
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
        )


def prefill_by_arithmetic(e: Evidence) -> Iterator[Finding]:
    """A prompt costs two operations for each of its tokens and each active weight: where TTFT is what the
    cards need for that, nothing else is left to blame.
    """
    card, parameters = card_of(hardware_text(e)), active_parameters_of(model_of(e))
    longest = max(prompt_tokens(e), default=0.0)
    firsts = [
        q for q in quantities(e, ("client:",)) if q.what == "ttft" and not q.is_rate and not q.situation
    ]
    load = load_of(e)
    if card is None or card.tflops is None or not parameters or longest < LEAST_PROMPT or not firsts:
        return
    if start_failed(e) or load.peak_waiting or load.peak_kv >= 0.9 or (concurrency(e) or 1) > 1:
        return
    cards = max(tensor_parallel(e), 1)
    least_s = 2 * parameters * longest / (cards * card.tflops * 1e12)
    measured_s = firsts[0].last
    if measured_s < LATE_S or not AT_MOST_FASTER <= measured_s / least_s <= AT_MOST_SLOWER:
        return
    yield Finding(
        Label.COMPUTE,
        f"{longest:,.0f} tokens through {parameters / 1e9:g}e9 weights are {least_s:.1f} s of arithmetic "
        f"for {cards} x {card.name} at its best, and TTFT is {measured_s:.1f} s",
        (fact(e, firsts[0].name), Fact(f"{card.name}: {card.tflops:g} TFLOP/s (dense, 16 bit)")),
        Advice(
            "a smaller model, more or faster cards, prefix caching of what repeats; settings of the "
            "scheduler and weights of fewer bits do not shorten it",
            "TTFT in proportion",
            "cards",
            "prompt tokens a second of the same prompt alone",
        ),
        Severity.NOTE,
        0.7,
        explains=frozenset({Label.QUEUEING, Label.UNDETERMINED, Label.BAD_FLAGS}),
    )


AT_MOST_FASTER, AT_MOST_SLOWER = 0.7, 3.0
"""TTFT over the arithmetic of the data sheet: kernels reach a third of it, in eight bits more than it."""


def batch_costs_less_than_its_parts(e: Evidence) -> Iterator[Finding]:
    """Short prompts that are read together take longer than one, and less than one after the other: that is
    what a batch is for.
    """
    by_load = dict(_ttft_by_load(e))
    longest = max([*prompt_tokens(e), e.flag("max-model-len") or 0.0])
    if len(by_load) < 2 or not 0 < longest <= SHORT_PROMPT or start_failed(e) or load_of(e).running:
        return
    few, many = min(by_load), max(by_load)
    alone, together = by_load[few].last, by_load[many].last
    if few == 1 and many >= 8 and alone > 0 and 1 < together / alone < 0.5 * many:
        yield Finding(
            Label.EXPECTED,
            f"{many:g} prompts together take {together / alone:.1f} times as long as one: "
            f"{together / many:.3g} s each instead of {alone:.3g}",
            (fact(e, by_load[few].name), fact(e, by_load[many].name)),
            Advice("nothing; a smaller batch where TTFT matters more than prompts a second", "none"),
            Severity.NOTE,
            0.7,
            also=(Label.COMPUTE,),
            explains=frozenset({Label.UNDETERMINED, Label.QUEUEING}),
        )


SHORT_PROMPT = 512.0
"""Tokens: below it one prompt does not fill the card."""


def nothing_but_prefill(e: Evidence) -> Iterator[Finding]:
    """Prompts of thousands of tokens, a token or two of answer, a card that is never idle: all its work is
    reading prompts, which is bound by arithmetic.
    """
    made = e.number("workload:max_tokens", "workload:output_tokens", "workload:osl")
    longest = max(prompt_tokens(e), default=0.0)
    busy = [
        r
        for r in e.under("gpu:")
        if r.last is not None and re.search(r"util|busy|sm_", r.name) and "mem" not in r.name
    ]
    if made is None or longest < LEAST_PROMPT or made > longest / 500 or not busy or start_failed(e):
        return
    if min(share(r.last or 0.0) for r in busy) < BUSY or load_of(e).peak_kv >= 0.9:
        return
    yield Finding(
        Label.COMPUTE,
        f"{longest:,.0f} tokens are read for {made:g} made, and the card is busy all the time: computation",
        (fact(e, busy[0].name), Fact(f"{longest:,.0f} prompt tokens for {made:g} of answer")),
        Advice(
            "prefix caching of what repeats, shorter prompts, more or faster cards, FP8 where the card "
            "has units for them",
            "TTFT in proportion",
            "cards, or a little quality",
            "prompt tokens a second, alone and under load: level means that it is all the card reads",
        ),
        Severity.WARNING,
        0.75,
        explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.QUEUEING}),
    )


BUSY = 0.9


RULES = (
    nothing_but_prefill,
    prefills_take_turns,
    waits_for_answers,
    more_offered_than_served,
    kv_is_read_at_each_token,
    prefill_by_arithmetic,
    batch_costs_less_than_its_parts,
)
