"""Settings that vLLM refuses when it starts, found from numbers and flags before or without its own words."""

from collections.abc import Iterator

from headrace.diagnose import refusals, refusals_of_drafts, refusals_of_model
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.missing_flags import flags_alone, took_them
from headrace.diagnose.refusals import Refusal, found_by
from headrace.diagnose.rules.support import fact, has_load, said
from headrace.diagnose.settings_of import Settings

CHECKS = (*refusals.CHECKS, *refusals_of_drafts.CHECKS, *refusals_of_model.CHECKS)


def contradictions(e: Evidence) -> tuple[Refusal, ...]:
    """Of a server that is seen at work none: it took its settings."""
    if e.engine not in {"vllm", ""} or not e.flags or took_them(e) or has_load(e):
        return ()
    whole = flags_alone(e)
    return tuple(each for each in found_by(CHECKS, Settings(e)) if whole or not each.is_of_absence)


def refused_together(e: Evidence) -> Iterator[Finding]:
    """VLLM checks its settings against each other, the model and the card before it loads anything."""
    for refusal in contradictions(e):
        told = e.release is not None or e.engine == "vllm"
        yield Finding(
            Label.BAD_FLAGS,
            f"{refusal.claim}: vLLM does not start",
            (
                *(fact(e, name) for name in refusal.names if name in e.flags or name in e.readings),
                *(said(event) for event in e.of("config_error")[-1:]),
            ),
            Advice(
                refusal.change, "the server starts", verify="the start-up log, up to the first ValueError"
            ),
            Severity.CRITICAL,
            (0.9 if refusal.is_certain else 0.8) if told else 0.7,
            explains=frozenset({Label.UNDETERMINED}),
        )


_OF_GRAPHS = (
    "cudagraph-capture-sizes",
    "max-cudagraph-capture-size",
    "cuda-graph-sizes",
    "max-seq-len-to-capture",
)


def graphs_turned_off(e: Evidence) -> Iterator[Finding]:
    """--enforce-eager captures no CUDA graph, so what says which ones is passed over."""
    given = [name for name in _OF_GRAPHS if name in e.flags]
    mode = Settings(e).part("compilation-config", "cudagraph_mode")
    if mode is not None and str(mode).upper() != "NONE":
        given.append("compilation-config")
    if not e.is_on("enforce-eager") or not given or e.engine not in {"vllm", ""} or not flags_alone(e):
        return
    names = ", ".join(f"--{name}" for name in given)
    yield Finding(
        Label.BAD_FLAGS,
        f"--enforce-eager captures no CUDA graphs: {names} has no effect beside it",
        tuple(fact(e, name) for name in ("enforce-eager", *given)),
        Advice(
            "leave --enforce-eager out",
            "several times faster decoding at small batches",
            "graphs take 0.5 to 2 GiB",
            "the start-up log captures graphs",
        ),
        Severity.WARNING,
        0.7,
        explains=frozenset({Label.UNDETERMINED}),
    )


RULES = (refused_together, graphs_turned_off)
