"""The five questions that people ask, each answered from the findings and the load, or not.

1 computation or memory traffic?   2 GPU or CPU?   3 steady or peak?   4 settings or workload?
5 what to do: for faster, for steadier
"""

from dataclasses import dataclass

from headrace.diagnose.doctor import Diagnosis
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Fact, Finding, Label, Severity
from headrace.diagnose.judgement import SUSPICION
from headrace.diagnose.load import increase, load_of
from headrace.diagnose.rules import contradictions, refused, settings
from headrace.diagnose.rules.support import fact, has_load, on_cpu, start_failed

CANNOT_TELL = "cannot tell from this"
STEADY, NEVER = 0.7, 0.0
"""Share of the time in which requests wait: from the first on it is no peak any more."""
FEW_SAMPLES = 5
PROMPT_HEAVY = 4.0
"""So many prompt tokens for one generated, and steps are full of prefill: arithmetic."""
COMPUTE_RIDGE, TRAFFIC_RIDGE = 300.0, 100.0
"""Operations a byte: cards are built for 150 to 300; clearly above arithmetic binds, clearly below
traffic."""

_OUTSIDE = frozenset({Label.CLIENT, Label.MEASUREMENT, Label.EXPECTED})
_SETTINGS = frozenset(
    {
        Label.BAD_FLAGS,
        Label.THRASH,
        Label.OOM_KV,
        Label.OOM_PEAK,
        Label.NEIGHBOUR,
        Label.INTERCONNECT,
        Label.COLD_START,
        Label.QUEUEING,
        Label.KV_CAPACITY,
    }
)
_WORKLOAD = frozenset(
    {Label.SHIFT, Label.COMPUTE, Label.PREFIX_MISS, Label.MEMORY_BANDWIDTH, Label.OOM_WEIGHTS}
)
_FASTER = frozenset(
    {
        Label.COMPUTE,
        Label.MEMORY_BANDWIDTH,
        Label.CPU,
        Label.BAD_FLAGS,
        Label.KV_CAPACITY,
        Label.INTERCONNECT,
        Label.PREFIX_MISS,
        Label.THRASH,
        Label.DP_IMBALANCE,
    }
)
_STEADIER = frozenset(
    {
        Label.QUEUEING,
        Label.THRASH,
        Label.COLD_START,
        Label.OOM_PEAK,
        Label.STALL,
        Label.SHIFT,
        Label.HOST_MEMORY,
        Label.CLIENT,
        Label.DP_IMBALANCE,
        Label.KV_CAPACITY,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    answer: str
    facts: tuple[Fact, ...] = ()
    collect: str = ""
    """What would tell, where this does not; empty where it does."""


def answers(diagnosis: Diagnosis) -> tuple[Answer, ...]:
    if (stopper := _stopper(diagnosis)) is not None:
        return _of_no_start(stopper)
    return (
        _arithmetic_or_traffic(diagnosis),
        _card_or_cpu(diagnosis),
        _steady_or_peak(diagnosis),
        _settings_or_workload(diagnosis),
        _what_to_do("For faster?", diagnosis, _FASTER),
        _what_to_do("For steadier?", diagnosis, _STEADIER),
    )


def _first(diagnosis: Diagnosis, *labels: Label) -> Finding | None:
    return next(
        (f for f in _known(diagnosis) if f.label in labels or not set(labels).isdisjoint(f.also)), None
    )


def _known(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """What rests on more than words: a suspicion answers nothing."""
    return tuple(f for f in diagnosis.findings if f.rule != SUSPICION)


def _unknown(question: str, collect: str) -> Answer:
    return Answer(question, f"{CANNOT_TELL}; collect {collect}", collect=collect)


def _worst(diagnosis: Diagnosis) -> Finding | None:
    return next(iter(diagnosis.findings), None)


def _stopper(diagnosis: Diagnosis) -> Finding | None:
    """What keeps the server from starting, if it never was at work."""
    load, worst = load_of(diagnosis.evidence), _worst(diagnosis)
    worked = load.peak_running or load.peak_waiting or sum(load.generated) or sum(load.prompted)
    if worst is None or worst.severity < Severity.CRITICAL or worked:
        return None
    return worst if _ends_at_start(diagnosis.evidence, worst) else None


def _ends_at_start(e: Evidence, worst: Finding) -> bool:
    if worst.label in _OF_STARTS_ALONE or start_failed(e):
        return True
    if has_load(e) or e.counts.get("ready"):
        return False
    seen_before = bool(e.of("not_up_yet", "probe_failed", "load_began"))
    return worst.rule in _REFUSES_THE_START or (worst.label is Label.HOST_MEMORY and seen_before)


_OF_STARTS_ALONE = frozenset({Label.OOM_WEIGHTS, Label.OOM_KV})
_REFUSES_THE_START = frozenset(
    rule.__name__ for rule in (*contradictions.RULES, *refused.RULES, settings.fewer_tokens_than_seqs)
)
_CARD_FULL = {
    Label.OOM_WEIGHTS: "neither is slow: the card's memory is too small for the weights",
    Label.OOM_KV: "neither is slow: the card's memory is too small, in what it leaves for KV",
    Label.OOM_PEAK: "neither is slow: the card's memory is too small for the peak of a trial step",
    Label.NEIGHBOUR: "neither is slow: others hold memory of the card",
    Label.HOST_MEMORY: "neither is slow: the host's memory, or the container's share, is too small",
}
_ON_WHOM_IT_DEPENDS = {
    Label.NEIGHBOUR: "neither: it starts or not by what else is on the card at that moment",
}


def _of_no_start(stopper: Finding) -> tuple[Answer, ...]:
    """Nothing is computed and nobody is served: the questions of speed have this for an answer."""
    label, facts, change = stopper.label, stopper.facts[:1], stopper.advice.change
    return (
        Answer("Computation or memory traffic?", "neither: it does not start, so no step is computed", facts),
        Answer("GPU or CPU?", _CARD_FULL.get(label, "neither is slow: it ends before it serves"), facts),
        Answer(
            "Steady or peak?",
            _ON_WHOM_IT_DEPENDS.get(label, "steady: every start with these settings ends so"),
            facts,
        ),
        Answer("Settings or workload?", f"settings ({label}): no request has come yet", facts),
        Answer("For faster?", change, facts),
        Answer("For steadier?", change, facts),
    )


def _arithmetic_or_traffic(diagnosis: Diagnosis) -> Answer:
    question, e = "Computation or memory traffic?", diagnosis.evidence
    if found := _first(diagnosis, Label.COMPUTE):
        return Answer(question, "computation", found.facts[:2])
    if found := _first(diagnosis, Label.MEMORY_BANDWIDTH):
        return Answer(question, "memory traffic", found.facts[:2])
    if (found := _stands(diagnosis)) is not None:
        return Answer(question, "neither: the engine does not move, so no step is computed", found.facts[:1])
    flops, read = (increase(e, f"vllm:estimated_{n}_per_gpu_total") for n in ("flops", "read_bytes"))
    if flops and read:
        per_byte = flops / read
        side = (
            "computation"
            if per_byte > COMPUTE_RIDGE
            else "memory traffic"
            if per_byte < TRAFFIC_RIDGE
            else "both"
        )
        return Answer(question, side, (Fact(f"{per_byte:.0f} operations for each byte read"),))
    load = load_of(e)
    prompts, made = sum(load.prompted), sum(load.generated)
    if prompts + made > 0:
        facts = tuple(fact(e, load.names[part]) for part in ("prompted", "generated") if load.names[part])
        if prompts > PROMPT_HEAVY * made:
            return Answer(
                question, f"computation: {prompts / max(made, 1e-9):.0f} prompt tokens for each made", facts
            )
        if prompts < made:
            return Answer(
                question, "memory traffic: steps that mostly decode read all weights for few tokens", facts
            )
    if e.engine == "headrace" or on_cpu(e):
        return _unknown(question, "the same under load: prompt and answer tokens of its requests tell")
    return _unknown(question, "DCGM's tensor and DRAM activity, or a server with --enable-mfu-metrics")


def _stands(diagnosis: Diagnosis) -> Finding | None:
    worst = _worst(diagnosis)
    stalled = worst is not None and worst.label is Label.STALL and worst.severity is Severity.CRITICAL
    return worst if stalled else None


def _ran_out_at_a_peak(diagnosis: Diagnosis) -> Finding | None:
    """A step of a server at work that needed more memory than there was."""
    worst = _worst(diagnosis)
    return worst if worst is not None and worst.label is Label.OOM_PEAK else None


def _card_or_cpu(diagnosis: Diagnosis) -> Answer:
    question = "GPU or CPU?"
    if found := _first(diagnosis, Label.CPU):
        return Answer(question, "the CPU", found.facts[:2])
    if diagnosis.evidence.engine == "headrace" or on_cpu(diagnosis.evidence):
        return Answer(question, "the CPU: no GPU computes here", ())
    if found := _first(diagnosis, Label.COMPUTE, Label.MEMORY_BANDWIDTH):
        return Answer(question, "the GPU", found.facts[:2])
    if found := _first(diagnosis, Label.THRASH, Label.KV_CAPACITY):
        return Answer(question, "neither is slow: memory for KV is short", found.facts[:2])
    if found := _ran_out_at_a_peak(diagnosis):
        return Answer(question, "the GPU: its memory, not its speed", found.facts[:1])
    if _stands(diagnosis) is not None:
        return _unknown(question, "py-spy dump --pid of the engine's process, and GPU use meanwhile")
    return _unknown(question, "CPU use by process, GPU use, and TTFT beside queue and prefill time")


def _steady_or_peak(diagnosis: Diagnosis) -> Answer:
    question, e = "Steady or peak?", diagnosis.evidence
    load = load_of(e)
    if found := _ran_out_at_a_peak(diagnosis):
        return Answer(question, "peaks: a step that needs more memory than was profiled", found.facts[:1])
    if len(load.waiting) < FEW_SAMPLES:
        return _unknown(
            question, "a series: headrace doctor URL --for 5m, a log, or --prometheus URL --since 6h"
        )
    waits = sum(value > 0 for value in load.waiting) / len(load.waiting)
    facts = (
        Fact(f"requests wait in {waits:.0%} of {len(load.waiting)} samples", e.where(load.names["waiting"])),
    )
    if load.is_idle:
        return Answer(question, "neither: nothing was asked while it was looked at", facts)
    if waits == NEVER:
        return Answer(question, "no waits at any time seen", facts)
    return Answer(question, "steady: too little of it always" if waits >= STEADY else "peaks", facts)


def _settings_or_workload(diagnosis: Diagnosis) -> Answer:
    question = "Settings or workload?"
    found = next((f for f in _known(diagnosis) if f.label is not Label.UNDETERMINED), None)
    if not diagnosis.findings:
        return Answer(question, "neither: nothing is wrong with what this shows")
    if found is None:
        return _unknown(question, "the server's flags, and lengths and rates of its requests")
    side = (
        "neither: it is outside the server"
        if found.label in _OUTSIDE
        else "settings"
        if found.label in _SETTINGS
        else "workload"
        if found.label in _WORKLOAD
        else "neither: the server or its machine"
    )
    return Answer(question, f"{side} ({found.label})", found.facts[:1])


def _what_to_do(question: str, diagnosis: Diagnosis, labels: frozenset[Label]) -> Answer:
    found = _first(diagnosis, *labels)
    worst = diagnosis.findings[0] if diagnosis.findings else None
    if found is None and worst is not None and worst.severity is Severity.CRITICAL:
        found = worst  # nobody is served before that is mended
    unsure = any(f.label is Label.UNDETERMINED or f.rule == SUSPICION for f in diagnosis.findings)
    if found is None and unsure:
        return _unknown(question, "what the first four questions need")
    if found is None:
        return Answer(question, "nothing here calls for a change")
    return Answer(question, found.advice.change, found.facts[:1])
