"""Where the server itself says that time to first token goes: the bill, by budget.

From a measurement of ours (`client:bill_…`) or from /metrics (`headrace:ttft_seconds`). Only our engine
keeps one.
"""

from collections.abc import Iterator

from headrace.core.bill import Cause
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import increase
from headrace.diagnose.rules import pace

WORTH_NAMING = 0.35
"""Share of the TTFT."""
LEAST_TTFT_S = 0.2
LEAST_PART_S = 0.25
"""Of a mean TTFT in one budget: less is worth knowing, and no reason to change anything."""
LEAST_WAITED_S = 1.0
_SYMPTOMS = frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.COMPUTE, Label.CPU})

_MEANS = {
    Cause.FRONT_END: (Label.CPU, "cores for the front end; shorter prompts"),
    Cause.TOKENS: (Label.QUEUEING, ""),  # by what is known of the pace: rules.pace
    Cause.DECODE_PACE: (
        Label.QUEUEING,
        "the ITL goal of --slo longer, or another replica: steps are kept short for streams",
    ),
    Cause.SLOTS: (Label.QUEUEING, "--max-num-seqs higher, as far as KV allows"),
    Cause.KV: (Label.KV_CAPACITY, "--kv-cache-memory-bytes higher, or an 8-bit --kv-cache-dtype"),
    Cause.LONG_PREFILL_CAP: (
        Label.QUEUEING,
        "--long-prefill-token-threshold higher: the cap itself is what waits",
    ),
    Cause.RECOMPUTE: (Label.THRASH, "more KV, or --max-num-seqs lower: nothing is computed twice"),
    Cause.SHARED_STEPS: (
        Label.QUEUEING,
        "--long-prefill-token-threshold, or --scheduling-policy shortest or slo",
    ),
    Cause.STEP_IN_FLIGHT: (Label.QUEUEING, "--max-num-batched-tokens lower: shorter steps end sooner"),
    Cause.OWN_PREFILL: (Label.COMPUTE, "prefix caching, shorter prompts, a faster machine; no setting helps"),
}


def largest_part(e: Evidence) -> Iterator[Finding]:
    """Parts are whole and add up to the TTFT, so the largest share is the budget to change."""
    parts = {cause: seconds for cause in Cause if (seconds := _part(e, cause)) is not None}
    whole = sum(parts.values())
    mean_s = whole / (_count(e) or 1.0)
    if whole <= 0 or mean_s < LEAST_TTFT_S:
        return
    cause, seconds = max(parts.items(), key=lambda item: item[1])
    if seconds < WORTH_NAMING * whole:
        return
    ranked = sorted(parts.items(), key=lambda item: -item[1])[:4]
    notable = cause is not Cause.OWN_PREFILL and mean_s * seconds / whole >= LEAST_PART_S
    severity = Severity.WARNING if notable else Severity.NOTE
    claim = (
        f"{seconds / whole:.0%} of a mean TTFT of {mean_s:.2f} s is {cause.replace('_', ' ')}, says the "
        f"server's bill"
    )
    facts = tuple(Fact(f"{name}: {part / whole:.0%}", _name(e, name)) for name, part in ranked)
    advice = _advice(e, cause, f"up to {seconds / whole:.0%} of TTFT", "the bill again")
    yield _named(cause, claim, facts, advice, severity)


def _named(cause: Cause, claim: str, facts: tuple[Fact, ...], advice: Advice, severity: Severity) -> Finding:
    """The budget that a part of the bill is a wait for."""
    label = _MEANS[cause][0]
    own = cause is Cause.OWN_PREFILL
    return Finding(
        label,
        claim,
        facts,
        advice,
        severity,
        0.5 if own else 0.9,  # sure too, but it asks for nothing
        explains=frozenset({Label.UNDETERMINED}) if own else _SYMPTOMS - {label},
    )


def _advice(e: Evidence, cause: Cause, effect: str, verify: str) -> Advice:
    if cause is Cause.TOKENS:
        return pace.advice(e, level=False)
    return Advice(_MEANS[cause][1], effect, "headrace simulate shows both sides", verify)


def waits_now(e: Evidence) -> Iterator[Finding]:
    """The same while they wait: seconds that requests spent for want of each budget, over the samples of a
    live server.
    The bill counts a request when its first token comes, so in an overload this is what moves.
    """
    name = "headrace:waiting_seconds_total{{budget={}}}"
    grown = {
        c: increase(e, name.format(c.value)) or 0.0 for c in Cause if len(e.series(name.format(c.value))) > 1
    }
    whole = sum(grown.values())
    if whole < LEAST_WAITED_S or whole < LEAST_TTFT_S * (_count(e) or 0.0):
        return  # the beat of the steps: everybody waits for the one in flight
    cause, seconds = max(grown.items(), key=lambda item: item[1])
    claim = (
        f"Requests wait for {cause.replace('_', ' ')}: {seconds:.1f} of {whole:.1f} seconds that they waited "
        f"just now"
    )
    facts = tuple(Fact(f"{c}: {s:.1f} s", name.format(c.value)) for c, s in grown.items() if s > 0)
    verify = "rate(headrace:waiting_seconds_total[1m])"
    yield _named(cause, claim, facts, _advice(e, cause, "that wait", verify), Severity.WARNING)


def _name(e: Evidence, cause: Cause) -> str:
    names = (f"headrace:ttft_seconds_total{{cause={cause.value}}}", f"client:bill_{cause.value}_s")
    return next((name for name in names if name in e.readings), "")


def _part(e: Evidence, cause: Cause) -> float | None:
    name = _name(e, cause)
    return increase(e, name) if name else None


def _count(e: Evidence) -> float | None:
    if any(name.startswith("client:bill_") for name in e.readings):
        return 1.0
    return increase(e, "vllm:time_to_first_token_seconds_count")


RULES = (largest_part, waits_now)
