"""Probes of an orchestrator: they end a server that loads, or one that has work."""

from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.rules.support import (
    fact,
    load_facts,
    out_of_memory,
    said,
    start_failed,
)


def ended_by_its_probe(e: Evidence) -> Iterator[Finding]:
    """A probe that fails while weights are still loading restarts the server before it was ever ready."""
    failed = e.of("probe_failed")
    if not failed or e.counts.get("ready") or out_of_memory(e) or start_failed(e):
        return
    if any("oom" in event.text.lower() for event in e.of("killed")):
        return  # nothing answers a probe while it is ended for its memory again and again
    yield Finding(
        Label.COLD_START,
        "A probe failed before the server was ready: it is restarted while it still loads",
        tuple(said(line) for line in failed[:2]),
        Advice(
            "a startupProbe that allows for the whole start (failureThreshold x periodSeconds), weights and "
            "compile caches on a volume",
            "the start comes to its end",
            "a hung start is seen later",
            "no restarts; 'Application startup complete' in the log",
        ),
        Severity.CRITICAL,
        0.75,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.STALL, Label.UNDETERMINED}),
    )


def probe_of_a_busy_server(e: Evidence) -> Iterator[Finding]:
    """A probe that waits a second or two fails while the front end is busy: the server is killed for having
    work, and what it had comes again to the next one.
    """
    failed, load = e.of("probe_failed"), load_of(e)
    at_work = load.peak_running > 0 and (load.peak_waiting > 0 or load.peak_running >= BUSY)
    moves = not load.generated or max(load.generated[-3:]) > 0
    if failed and at_work and moves and not out_of_memory(e):
        yield Finding(
            Label.BAD_FLAGS,
            f"A probe failed with {load.peak_running:,.0f} running and {load.peak_waiting:,.0f} waiting: the "
            f"server is busy, not dead",
            (said(failed[0]), *load_facts(e, load)[:3]),
            Advice(
                "timeoutSeconds 10 and failureThreshold 6 and more for the liveness probe; watch "
                "vllm:iteration_tokens_total_count for a hang instead",
                "a busy server goes on",
                "a hung one is restarted later",
                "no restarts while tokens are made",
            ),
            Severity.WARNING,
            0.65,
            also=(Label.QUEUEING,),
            explains=frozenset({Label.STALL, Label.UNDETERMINED}),
        )


BUSY = 16


def probe_before_ready(e: Evidence) -> Iterator[Finding]:
    """Without a startup probe the liveness probe counts from the container's start: whoever loads longer than
    it allows is restarted, for ever.
    """
    delay = e.number("workload:liveness_initial_delay_s")
    period = e.number("workload:liveness_period_s") or 10.0
    failures = e.number("workload:liveness_failure_threshold") or 3.0
    if delay is None or e.number("workload:startup_probe") or e.counts.get("ready"):
        return
    allowed = delay + period * failures
    took = max((r.last or 0.0 for r in e.under("startup:") if r.name.endswith("_s")), default=0.0)
    if allowed < max(took, USUAL_START_S):
        yield Finding(
            Label.COLD_START,
            f"The liveness probe ends a start that takes longer than {allowed:,.0f} s, and no startup probe "
            f"waits for it",
            tuple(fact(e, r.name) for r in e.under("workload:liveness")),
            Advice(
                "a startupProbe (failureThreshold 60, periodSeconds 10) before the liveness probe",
                "large models come up",
                "a hung start is seen later",
                "no restarts of the container while it loads",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.BAD_FLAGS,),
            explains=frozenset({Label.STALL, Label.UNDETERMINED}),
        )


USUAL_START_S = 300.0
"""A large model from a network disk takes so long, with compiling."""


RULES = (ended_by_its_probe, probe_of_a_busy_server, probe_before_ready)
