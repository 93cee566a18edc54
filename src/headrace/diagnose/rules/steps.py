"""What steps are made of, by the histograms of a server at work: too many sequences, too much of a prompt,
long prompts before short ones.

Every sequence of a step gets its token when the step ends, so the time between tokens is the time of a step.
"""

from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.histograms import Histogram, histogram
from headrace.diagnose.load import increase, load_of, mean_of
from headrace.diagnose.rules.queue import KV_FULL
from headrace.diagnose.rules.support import fact, start_failed

MANY_SEQS = 16
SLOW_TOKEN_S = 0.15
"""Between tokens: slower than people read, some five words a second."""
MANY_TIMES = 3.0
"""The same server has made tokens so many times as fast: it is not the model that is slow."""
LEAST_SHARE = 0.01
"""Of all times between tokens, for saying that they can be as short."""
SPIKE_S, SPIKE_TIMES = 0.75, 8.0
"""A stream that stands so long, and so many times as long as usual, is seen to stand."""
ONCE, ONCE_S = 2, 2.5
"""So few tokens, of one stream or two in a whole look, that come no later than that, are no trouble."""
LARGE_STEP = 512
"""Tokens of a step: more than decodes alone ever are on a small server."""
GOAL_GAP_S = 0.5
LATE_S = 1.0
"""A first token so late is worth asking why."""
LONG_TIMES = 4.0
"""Times the median prompt."""
LONG_SHARE = 0.5
"""Of all prompt tokens are of long prompts."""

_STEP_TOKENS = ("headrace:step_tokens", "vllm:iteration_tokens_total")
_ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


def too_many_share_a_step(e: Evidence) -> Iterator[Finding]:
    """A step takes longer with every sequence in it, and each of them waits for the whole. Beyond what the
    machine computes side by side, more sequences bring hardly more tokens and make each of them later.
    """
    gaps, load = _of(e, _ITL), load_of(e)
    seqs = mean_of(e, "headrace:step_sequences") or _mean(load.running)
    slow_s, computed = gaps.at(0.5).low, _computed(e)
    decoding = computed is not None and computed <= (increase(e, "vllm:generation_tokens_total") or 0.0)
    fastest_s = next((b.high for b in _life(e, _ITL).buckets if b.count >= LEAST_SHARE * gaps.count), 0.0)
    if (
        seqs < MANY_SEQS
        or slow_s < SLOW_TOKEN_S
        or not decoding
        or start_failed(e)
        or load.peak_kv >= KV_FULL
    ):
        return
    known = 0 < fastest_s <= slow_s / MANY_TIMES
    cap = max(MANY_SEQS // 2, int(seqs * GOAL_TOKEN_S / slow_s) // 8 * 8)
    name = next(name for name in _ITL if f"{name}_count" in e.readings)
    yield Finding(
        Label.QUEUEING,
        f"{seqs:,.0f} sequences share each step: half of the tokens take {slow_s:g} s or more each"
        + (f"; with few at once it has made them within {fastest_s:g} s" if known else ""),
        (
            Fact(f"{seqs:,.0f} sequences in a step", e.where("headrace:step_sequences_sum")),
            Fact(
                f"median time between tokens: {gaps.at(0.5).low:g} to {gaps.at(0.5).high:g} s",
                e.where(f"{name}_count"),
            ),
            *(fact(e, flag) for flag in ("max-num-seqs",) if flag in e.flags),
        ),
        Advice(
            f"--max-num-seqs {cap}: the others wait in the queue for a slot, not in every step",
            "tokens of a stream come sooner, nearly in proportion; tokens a second in all fall far less",
            "who finds no slot waits for its first token",
            "inter_token_latency_seconds and num_requests_waiting; headrace simulate shows both sides",
        ),
        Severity.WARNING,
        0.8 if known else 0.6,
        rivals=("a machine that is slow for others' sake: its cores or its card are shared",),
        explains=frozenset({Label.QUEUEING, Label.CPU, Label.UNDETERMINED, Label.EXPECTED}),
    )


GOAL_TOKEN_S = 0.1


def steps_stop_the_streams(e: Evidence) -> Iterator[Finding]:
    """A prompt's chunk may be as large as the token budget, and whoever decodes waits for the whole step: the
    time between tokens is short, and now and then as long as the largest step takes. Where such a step was
    most of the look, what is usual is what it was in the server's life.
    """
    gaps, steps = _of(e, _ITL), _of(e, _STEP_TOKENS)
    usual_s = min(gaps.at(0.5).high, _life(e, _ITL).at(0.5).high)
    usual_tokens = min(steps.at(0.5).high, _life(e, _STEP_TOKENS).at(0.5).high)
    spikes = gaps.above(max(SPIKE_S, SPIKE_TIMES * usual_s))
    largest = steps.at(1.0)
    once = spikes <= ONCE and gaps.at(1.0).low < ONCE_S
    if not spikes or once or largest.high <= LARGE_STEP or usual_tokens > LARGE_STEP or start_failed(e):
        return
    longest_s = gaps.at(1.0).low
    budget = e.flag("max-num-batched-tokens")
    fits = _power_of_two(largest.low / max(gaps.at(1.0).high, 1e-9) * GOAL_GAP_S)
    yield Finding(
        Label.QUEUEING,
        f"Streams stand while a prompt is read: tokens take up to {usual_s:g} s each, but {spikes:,.0f} of "
        f"them {longest_s:g} s or more, as a step of {largest.low:,.0f} to {largest.high:,.0f} tokens does",
        (
            Fact(f"median time between tokens: at most {usual_s:g} s"),
            Fact(f"longest: more than {longest_s:g} s"),
            Fact(f"largest step: more than {largest.low:,.0f} tokens"),
            *((fact(e, "max-num-batched-tokens"),) if budget else ()),
        ),
        Advice(
            f"--max-num-batched-tokens lower: at this speed {fits:,.0f} tokens are a step of about "
            f"{GOAL_GAP_S:g} s, where decodes go on in between",
            "the longest time between tokens falls in proportion",
            "a long prompt takes a few per cent longer: more steps, each with the decodes",
            "P99 of inter_token_latency_seconds",
        ),
        Severity.WARNING,
        0.8,
        explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.CPU}),
    )


def short_wait_for_long(e: Evidence) -> Iterator[Finding]:
    """Prompts are read first come, first served, each with all that is left of a step: a few long ones are
    most of the tokens, and the many short ones behind them wait as if they were long.
    """
    prompts, first = (
        histogram(e, "vllm:request_prompt_tokens"),
        histogram(e, "vllm:time_to_first_token_seconds"),
    )
    usual, late_s = prompts.at(0.5), first.at(0.5).low
    long_ones = [b for b in prompts.buckets if b.low >= LONG_TIMES / 2 * usual.high and b.high < float("inf")]
    of_long = sum(b.count * (b.low + b.high) / 2 for b in long_ones)
    of_all = increase(e, "vllm:prompt_tokens_total") or 0.0
    if not long_ones or start_failed(e) or of_long < LONG_SHARE * of_all or load_of(e).peak_kv >= KV_FULL:
        return
    if late_s < LATE_S or not _behind_others(e, usual.high, late_s, of_all):
        return
    count, most = sum(b.count for b in long_ones), max(b.high for b in long_ones)
    yield Finding(
        Label.QUEUEING,
        f"Short prompts wait for long ones: half of the prompts have at most {usual.high:,.0f} tokens, yet "
        f"half of the first tokens take {late_s:g} s or more; {count:,.0f} of up to {most:,.0f} tokens are "
        "most of the work",
        (
            Fact(
                f"median prompt: at most {usual.high:,.0f} tokens",
                e.where("vllm:request_prompt_tokens_count"),
            ),
            Fact(f"median TTFT: more than {late_s:g} s", e.where("vllm:time_to_first_token_seconds_count")),
            Fact(f"{of_all:,.0f} prompt tokens, {min(1.0, of_long / of_all):.0%} of them of long prompts"),
        ),
        Advice(
            _let_short_pass(e),
            "a short prompt is read in the next step, whoever is being read",
            "a long prompt's first token comes later: more steps, shared with others",
            "TTFT of short requests while a long one is read; headrace simulate shows both sides first",
        ),
        Severity.WARNING,
        0.92,
        also=(Label.COMPUTE,) if load_of(e).peak_waiting else (),
        rivals=("more work than the machine can do at all: does the queue ever empty between long prompts?",),
        explains=frozenset(
            {Label.QUEUEING, Label.CPU, Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}
        ),
    )


def _behind_others(e: Evidence, tokens: float, late_s: float, read: float) -> bool:
    """Whether so much is not the time to read `tokens`: by the bill, or by the speed that was seen."""
    bill = {
        r.name.rpartition("=")[2][:-1]: increase(e, r.name) or 0.0
        for r in e.under("headrace:ttft_seconds_total{")
    }
    if whole := sum(bill.values()):
        return bill.get("own_prefill", 0.0) < 0.5 * whole
    busy_s = increase(e, "vllm:request_prefill_time_seconds_sum") or 0.0
    return busy_s > 0 and late_s > LONG_TIMES * tokens / (read / busy_s)


def _let_short_pass(e: Evidence) -> str:
    threshold = 256
    if e.engine == "headrace":
        return f"--scheduling-policy shortest (or slo), or --long-prefill-token-threshold {threshold}"
    if not flag_facts().has("long-prefill-token-threshold", e.release):
        return (
            "a newer version with --long-prefill-token-threshold; until then another replica for long prompts"
        )
    return (
        f"--long-prefill-token-threshold {threshold} (a long prompt leaves the rest of each step to others), "
        "or a gateway that sends long prompts to a replica of their own"
    )


def _of(e: Evidence, names: tuple[str, ...]) -> Histogram:
    """The first of these that counted something."""
    return next((found for name in names if (found := histogram(e, name)).count), Histogram(()))


def _life(e: Evidence, names: tuple[str, ...]) -> Histogram:
    """Since the server's start, not only over the scrapes."""
    last = Evidence(
        readings={
            reading.name: type(reading)(reading.name, reading.values[-1:], reading.where)
            for name in names
            for reading in e.under(f"{name}_bucket")
        }
    )
    return _of(last, names)


def _computed(e: Evidence) -> float | None:
    """Prompt tokens that were not found in the cache."""
    names = ("headrace:prefill_tokens_total", "vllm:prompt_tokens_by_source_total{source=local_compute}")
    return increase(e, *names, "vllm:prompt_tokens_total")


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else 0.0


def _power_of_two(tokens: float) -> int:
    """The largest that is not more; never so small that decodes fill a step."""
    return max(64, 1 << max(0, int(tokens).bit_length() - 1))


RULES = (short_wait_for_long, too_many_share_a_step, steps_stop_the_streams)
