"""Allocations that fail, told apart by when: while weights load, while start-up tries the largest step, while
graphs are captured, while serving. The KV pool is fixed from start on, so it is never the cause.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum

from headrace.diagnose.evidence import Event, Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.rules.memory import CONTEXT_GIB, given, neighbour_gib, told_beside
from headrace.diagnose.rules.support import OUT_OF_MEMORY, TOLD_OF_THE_HOST, TOLD_OOM, gib, said, told_words
from headrace.diagnose.sizes import is_unified, memory_gib, tensor_parallel, weights_gib

WEIGHTS_ALONE = 0.95
"""Of a card: weights that take more leave nothing for anything else."""
USUAL_LARGE_GIB = 80.0
"""Of a card that is not named: few hold more."""
BEYOND_WEIGHTS = 2.0
"""Times what weights weigh by the model's name, which is right to within a tenth."""
ABOVE_ANY_BUDGET = 0.98
"""A share of the card that PyTorch itself cannot reach once the budget of `gpu_memory_utilization` binds."""


class Phase(IntEnum):
    UNKNOWN = 0
    LOAD = 1
    PROFILE = 2
    CAPTURE = 3
    SERVE = 4


_WORDS = (
    (Phase.CAPTURE, r"captur|cuda.?graph|warm.?up|sampler"),
    (Phase.LOAD, r"weight|load(?!.?test)"),
    (Phase.PROFILE, r"profil|determine_"),
    (Phase.SERVE, r"serv|run.?time|request|infer|decod|prefill|traffic|generat|logprob"),
)


def crash(e: Evidence) -> Iterator[Finding]:
    """An allocation failed: the phase says whose memory was short, the message's own sums who else was
    there.
    """
    events = e.of("oom_load", "oom_sampler", "oom_capture", "oom")
    if not events or e.of("no_blocks"):
        return  # what found no memory was the pool itself, and says so
    event = max(events, key=lambda each: (each.kind != "oom", len(each.fields)))
    phase = phase_of(e, event)
    neighbour = neighbour_gib(e)
    facts = tuple(dict.fromkeys(said(each) for each in (event, *e.of("oom_load", "oom_sampler")[:1])))
    if neighbour >= CONTEXT_GIB:
        facts += (Fact(f"{neighbour:.2f} GiB of the card belong to other processes", event.where),)
    if phase is Phase.LOAD:
        yield _weights_do_not_fit(e, facts, neighbour)
    elif phase is Phase.UNKNOWN and told_beside(e):
        yield _somebody_else_was_there(facts)
    else:
        yield _peak_does_not_fit(e, facts, neighbour, phase)


def _somebody_else_was_there(facts: tuple[Fact, ...]) -> Finding:
    return Finding(
        Label.NEIGHBOUR,
        "An allocation failed on a card that this server shares with another, as was told",
        facts,
        Advice(
            "--kv-cache-memory-bytes for each so that all fit, started one after the other",
            "each finds what it asked for",
            "smaller pools",
            "nvidia-smi before the start of each",
        ),
        Severity.CRITICAL,
        0.7,
        rivals=("weights or a peak too large for the card alone: the same start with nobody beside it",),
        explains=frozenset({Label.OOM_PEAK, Label.OOM_WEIGHTS, Label.STALL, Label.UNDETERMINED}),
    )


def _weights_do_not_fit(e: Evidence, facts: tuple[Fact, ...], neighbour: float) -> Finding:
    beside = neighbour >= CONTEXT_GIB
    online = (
        str(e.flags["quantization"].value) if "quantization" in e.flags else e.text("workload:quantization")
    )
    return Finding(
        Label.OOM_WEIGHTS,
        "The weights, with what loading needs beside them, do not fit the card",
        facts,
        Advice(
            ("stop or move the other process; else " if beside else "")
            + (
                "a checkpoint already in that format (quantising while loading keeps the 16-bit weights "
                "too), or "
                if online
                else "a pre-quantised checkpoint, or "
            )
            + "--tensor-parallel-size 2",
            "half the weights on each card, or half the bytes",
            "two cards, or a little quality",
            "'Model loading took … GiB' appears",
        ),
        Severity.CRITICAL,
        0.88,
        also=(Label.NEIGHBOUR,) if beside else (),
        rivals=(
            (
                "lowering --gpu-memory-utilization, as the error text proposes, cannot help: no KV is "
                "allocated yet"
            ),
        ),
        explains=frozenset(
            {Label.OOM_PEAK, Label.OOM_KV, Label.STALL, Label.KV_CAPACITY, Label.UNDETERMINED}
        ),
    )


def _peak_does_not_fit(e: Evidence, facts: tuple[Fact, ...], neighbour: float, phase: Phase) -> Finding:
    what = {
        Phase.CAPTURE: "Capturing graphs or warming up the sampler needs memory beyond what the budget left",
        Phase.PROFILE: "The largest step that the limits allow does not fit while start-up tries it",
        Phase.SERVE: "A step needed more memory than was profiled; the KV pool is fixed and not the cause",
        Phase.UNKNOWN: "An allocation failed outside the KV pool",
    }[phase]
    fewer = "--max-num-seqs (fewer graphs, smaller sampler batch)"
    change = {
        Phase.CAPTURE: f"lower {fewer} or --gpu-memory-utilization by 0.01 to 0.02; keep the graphs",
        Phase.PROFILE: "--max-num-batched-tokens 2048, and --limit-mm-per-prompt to what clients send",
    }.get(
        phase,
        "--gpu-memory-utilization 0.02 to 0.05 lower (or --kv-cache-memory-bytes), "
        "--max-num-batched-tokens lower, and a bound on prompt_logprobs, images and LoRA ranks",
    )
    return Finding(
        Label.OOM_PEAK,
        what,
        facts + given(e, "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens"),
        Advice(
            change,
            "room outside the KV pool",
            "a smaller pool: fewer requests at once, or smaller steps",
            "peak of nvidia-smi under the same burst stays below the total",
        ),
        Severity.CRITICAL,
        0.85 if phase is not Phase.UNKNOWN else 0.55,
        also=(Label.NEIGHBOUR,) if neighbour >= CONTEXT_GIB else (),
        rivals=("weights, if it came before 'Model loading took'",) if phase is Phase.UNKNOWN else (),
        explains=frozenset({Label.KV_CAPACITY, Label.STALL, Label.UNDETERMINED}),
    )


def phase_of(e: Evidence, event: Event) -> Phase:
    """When the allocation failed: by the event's kind, the traceback, the lines before it, what was told."""
    by_kind = {"oom_load": Phase.LOAD, "oom_sampler": Phase.CAPTURE, "oom_capture": Phase.CAPTURE}
    return (
        by_kind.get(event.kind)
        or _told_phase(e)
        or _traced(e)
        or _starts_without_graphs(e)
        or _by_sums(e, event)
        or _by_order(e, event)
    )


def _told_phase(e: Evidence) -> Phase:
    text = " ".join(
        e.text(f"workload:{name}") for name in ("phase", "stage", "when", "during", "at", "moment")
    )
    found = next((p for p, words in _WORDS if re.search(words, text.lower())), None) if text.strip() else None
    if found is None and any(_SERVED.search(r.name) for r in e.under("workload:")):
        return Phase.SERVE
    return found or Phase.UNKNOWN


_SERVED = re.compile(r"logprob|concurrent|accumul|turns?\b|session|conversation|:mix$")
"""Told of requests that ran: the weights had been loaded by then."""


def _traced(e: Evidence) -> Phase:
    kinds = {
        "in_load": Phase.LOAD,
        "in_capture": Phase.CAPTURE,
        "profiling_failed": Phase.PROFILE,
        "in_sampler": Phase.CAPTURE,
    }
    return next((phase for kind, phase in kinds.items() if e.counts.get(kind)), Phase.UNKNOWN)


def _starts_without_graphs(e: Evidence) -> Phase:
    """What starts in eager mode has room for its weights and its pool: it is the graphs that do not fit."""
    if e.is_on("enforce-eager"):
        return Phase.UNKNOWN
    tried = [r for r in e.under("workload:") if _EAGER_WORKS.search(r.name) and not _NOT.match(r.text)]
    texts = (r.text.lower().replace("-", "_") for r in e.under("workload:"))
    told = any(_EAGER_WORKS.search(text) and not _NEVER.search(text) for text in texts)
    return Phase.CAPTURE if told or any(r.values != (0.0,) for r in tried) else Phase.UNKNOWN


_EAGER_WORKS = re.compile(
    r"(?:starts|works|runs|fits|fine|ok)\w*[ _](?:\w+[ _]){0,2}(?:enforce_)?eager|"
    r"(?:enforce_)?eager\w*[ _](?:\w+[ _]){0,2}(?:starts|works|runs|fits|fine|ok)\b"
)
_NEVER = re.compile(r"\b(?:never|not|neither|no)\b")
_NOT = re.compile(r"\s*(?:no|not|does not|false|fails|oom)\b", re.IGNORECASE)


def _by_sums(e: Evidence, event: Event) -> Phase:
    if "private pools" in event.text:
        return Phase.CAPTURE  # graphs have been captured: weights were loaded long before
    torch = gib(event.fields.get("torch", event.fields.get("old_torch", "")))
    total = gib(event.fields.get("total", event.fields.get("old_total", "")))
    reach = max(ABOVE_ANY_BUDGET, (e.flag("gpu-memory-utilization") or 0.0) + 0.03)
    if torch and total and torch > reach * total:
        return Phase.LOAD
    weights, card = weights_gib(e), memory_gib(e)
    held = [gib(text) or 0.0 for text in re.findall(r"has ([\d.]+ [KMG]iB) memory in use", event.text)]
    if weights and max(torch or 0.0, *held, 0.0) > BEYOND_WEIGHTS * weights / tensor_parallel(e):
        return Phase.PROFILE  # they are there, and as much again
    alone = weights and weights / max(tensor_parallel(e), 1) > WEIGHTS_ALONE * (card or USUAL_LARGE_GIB)
    return Phase.LOAD if alone else Phase.UNKNOWN


def _by_order(e: Evidence, event: Event) -> Phase:
    marks = {
        "engine_config": Phase.LOAD,
        "load_began": Phase.LOAD,
        "load_ended": Phase.PROFILE,
        "loaded": Phase.PROFILE,
        "kv_available": Phase.CAPTURE,
        "kv_size": Phase.CAPTURE,
        "graphs_began": Phase.CAPTURE,
        "ready": Phase.SERVE,
        "memory_summary": Phase.CAPTURE,
    }
    passed = [marks[each.kind] for each in e.events if each.kind in marks and each.at < event.at]
    if any(e.counts.get(kind) for kind in ("stats", "in_forward", "sglang_prefill", "sglang_decode")):
        return Phase.SERVE
    return passed[-1] if passed else Phase.UNKNOWN


_NEAR = 80
"""Characters around the word in which the moment is told, if it is told."""
_MOMENTS = (
    (Phase.CAPTURE, r"captur|cuda.?graphs?\b|warm.?(?:ing)?.?up|sampler"),
    (Phase.PROFILE, r"profil(?:ing|e.run)|determine_|mm.per.prompt"),
    (
        Phase.SERVE,
        r"\bserving|run.?time|requests?\b|inferenc|decod|prefill|traffic|generat|logprob|under.load|concurren|images?\b",
    ),
    (
        Phase.LOAD,
        r"weights?\b|load(?:s|ing|ed)?.{0,12}(?:model|weights|checkpoint|shard)|(?:model|weight)s?.load",
    ),
)
"""More than in `_WORDS`, which are for a phase that was named as one: here they stand in any sentence."""


def _phase_in(text: str) -> Phase:
    return next((phase for phase, words in _MOMENTS if re.search(words, text)), Phase.UNKNOWN)


def told_out_of_memory(e: Evidence) -> Iterator[Finding]:
    """An out-of-memory that somebody tells of without its lines: the phase they name decides, else nothing
    does.
    """
    if e.of(
        *OUT_OF_MEMORY,
        "kv_too_short",
        "no_blocks",
        "free_below_budget",
        "retracted",
        "pool_allocation",
        "killed",
    ):
        return
    names = told_words(e)
    mentions = [m.span() for m in TOLD_OOM.finditer(names)]
    if not mentions:
        return
    where = e.sources[-1] if e.sources else ""
    beside = " ".join(names[max(0, start - _NEAR) : end + _NEAR] for start, end in mentions)
    if TOLD_OF_THE_HOST.search(beside) and not _OF_A_CARD.search(beside):
        return
    phase = _phase_in(beside) or _phase_in(names)
    facts = (Fact("an out-of-memory was told of, its lines were not", where),)
    if phase is Phase.LOAD:
        found = _weights_do_not_fit(e, facts, 0.0)
    elif phase is Phase.UNKNOWN and told_beside(e):
        found = _somebody_else_was_there(facts)
    else:
        found = _peak_does_not_fit(e, facts, 0.0, phase)
    elsewhere = _UNDER_OTHERS.search(beside) is not None
    yield replace(found, confidence=min(found.confidence, ELSEWHERE)) if elsewhere else found


_OF_A_CARD = re.compile(r"cuda|gpu|vram|hip\b|device")
_UNDER_OTHERS = re.compile(
    r"oom[ _](?:above|beyond|over|from|with_more)|without[ _]\w+ (?:oom|out of memory)|"
    r"(?:oom|out of memory) without"
)
"""Of other settings than those of the server that is complained of."""
ELSEWHERE = 0.6


def parts_exceed_budget(e: Evidence) -> Iterator[Finding]:
    """Weights + peak + non-torch + graphs + KV above the budget: what start-up measured after it had sized
    the pool does not fit beside it any more.
    """
    for event in e.of("memory_summary")[-1:]:
        names = ("weights", "activation", "non_torch", "graphs", "kv")
        parts = {name: event.number(name) or 0.0 for name in names}
        budget = event.number("budget") or 0.0
        if parts["kv"] and sum(parts.values()) > budget + 0.5:
            over = sum(parts.values()) - budget
            suggested = e.number("startup:suggested_kv_bytes")
            yield Finding(
                Label.OOM_PEAK,
                f"KV pool and all other parts take {over:.2f} GiB more than the budget of {budget:g} GiB",
                (said(event), Fact(" + ".join(f"{v:g} {k}" for k, v in parts.items()) + " GiB", event.where)),
                Advice(
                    f"--kv-cache-memory-bytes {int(suggested)}"
                    if suggested
                    else "--gpu-memory-utilization 0.02 lower",
                    "the parts fit the budget",
                    f"{over:.2f} GiB less KV",
                    "graph capture and sampler warm-up pass",
                ),
                Severity.CRITICAL if not e.counts.get("ready") else Severity.WARNING,
                0.75,
                rivals=("nothing, if the card has that much free above the budget and nobody else uses it",),
            )


def killed_on_unified_memory(e: Evidence) -> Iterator[Finding]:
    """Where card and host share their memory, the kernel ends who asks for too much on the card."""
    killed, serving = e.of("killed"), e.of("engine_dead") or e.counts.get("ready") or e.counts.get("stats")
    peak = any(re.search(r"image|video|audio|computed_tokens|logprob", r.name) for r in e.under("workload:"))
    if not is_unified(e) or not killed or not (serving or peak):
        return
    yield Finding(
        Label.OOM_PEAK,
        "The kernel ended a worker: on memory that card and host share, a step's peak counts against both",
        tuple(said(event) for event in killed[:2]),
        Advice(
            "bounds on images and tokens of a step (--limit-mm-per-prompt, "
            "--max-num-batched-tokens), profiling "
            "not skipped, --gpu-memory-utilization lower by what the system needs",
            "peaks have room",
            "a smaller pool",
            "free memory of the host under the same request",
        ),
        Severity.CRITICAL,
        0.8,
        also=(Label.HOST_MEMORY,),
        explains=frozenset({Label.HOST_MEMORY, Label.STALL, Label.UNDETERMINED}),
    )


RULES = (
    crash,
    told_out_of_memory,
    parts_exceed_budget,
    killed_on_unified_memory,
)
