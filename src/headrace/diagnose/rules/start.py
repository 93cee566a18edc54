"""A server that is looked at while it starts: nobody is served before it has loaded and warmed up."""

from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.rules.support import fact, said, start_failed

_STEPS = ("load_began", "loaded", "compiled", "graphs_began", "graphs_captured", "init_engine", "ready")
"""Kinds of a log's lines that tell how far a start has come."""

_BEGINNING = ("version", "args", "engine_config", "load_began")
"""Of which a log has some as soon as it has anything."""


def not_ready_yet(e: Evidence) -> Iterator[Finding]:
    """The address opens when the weights are loaded, the kernels compiled and the KV cache profiled; whoever
    asks before is refused, and all of them come at once when it opens.
    """
    silent_s, answers = e.number("server:silent_s"), e.number("server:answers")
    began = any(e.counts.get(kind) for kind in _BEGINNING)
    opened = e.counts.get("ready", 0) > 0
    ended = start_failed(e) or bool(e.of("engine_dead", "stopping"))
    if silent_s is None or not began or ended or (opened and not answers):
        return
    steps = tuple(said(event) for event in e.of(*_STEPS)[-3:])
    yield Finding(
        Label.COLD_START,
        f"The server became ready {silent_s:.0f} s after it was first asked: until then it was starting"
        if answers
        else f"The server is still starting: no answer for {silent_s:.0f} s, and its log does not say ready",
        (fact(e, "server:silent_s", f"no answer for {silent_s:.1f} s"), *steps, *_slowest(e)),
        Advice(
            "send traffic only once /health answers (a readiness probe that allows for the start); keep "
            "weights, converted models and compile caches on a local volume; start before the load comes",
            "nobody is refused, and no crowd meets a server that has just opened",
            "a replica that is up before it is needed",
            "the time from start to ready in the log",
        ),
        Severity.WARNING,
        0.9,
        explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED, Label.STALL}),
    )


def _slowest(e: Evidence) -> tuple[Fact, ...]:
    """What of the start took longest, where the log tells."""
    told = [r for r in e.under("startup:") if r.name.endswith("_s") and r.last is not None]
    worst = max(told, key=lambda reading: reading.last or 0.0, default=None)
    return (fact(e, worst.name),) if worst else ()


RULES = (not_ready_yet,)
