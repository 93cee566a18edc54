"""Out of memory, told apart by when it happens, because that says whose memory it is.

load          only weights and what else is on the card     -> weights, neighbour
profiling     + the activations of the largest step          -> run-time peak
cache         what the budget leaves must hold one request   -> KV capacity
capture       graphs and the sampler, outside the budget     -> run-time peak
serving       the KV pool is fixed, so it is never the cause -> run-time peak
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from headrace.diagnose.evidence import Event, Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.rules.support import fact, gib, has_load, said, start_failed
from headrace.diagnose.sizes import is_unified, memory_gib, ranks_of, weights_gib

NEIGHBOUR_SHARE = 0.15
"""Of a card: contexts, the driver and a display take less."""
CONTEXT_GIB = 1.5
"""An empty card that runs nothing has lost no more than this to contexts and the driver."""
_CRITICAL = Severity.CRITICAL
_REFUSED = frozenset(
    {Label.KV_CAPACITY, Label.OOM_PEAK, Label.OOM_WEIGHTS, Label.QUEUEING, Label.STALL, Label.UNDETERMINED}
)


def pool_too_short(e: Evidence) -> Iterator[Finding]:
    """V1 refuses to start unless one request of max_model_len fits the pool
    (`_check_enough_kv_cache_memory`).
    """
    for event in e.of("kv_too_short")[-1:]:
        length, need, have = event.number("length"), event.number("need_gib"), event.number("have_gib")
        most = event.number("estimate") or event.number("have_tokens")
        if most is None and length and need and have and have > 0:
            most = length * have / need
        limit = (
            f"--max-model-len {int(most):,}".replace(",", "") if most and most > 0 else "--max-model-len auto"
        )
        yield Finding(
            Label.OOM_KV,
            f"One request of max_model_len {int(length or 0):,} tokens does not fit the KV pool",
            (said(event),),
            Advice(
                f"{limit} at most, or what traffic needs if that is less",
                "the server starts; the pool is the same size, so as many tokens run at once as before",
                "longer requests are refused with 400",
                "'Maximum concurrency for … tokens per request' at start is 1.0x or more",
            ),
            _CRITICAL,
            0.95,
            rivals=(
                (
                    "what eats the budget: compare 'Available KV cache memory' of two starts; a larger "
                    "max_num_batched_tokens or (before V1) max_model_len raises the profiled peak"
                ),
            ),
            explains=_REFUSED,
        )


def told_pool_too_short(e: Evidence) -> Iterator[Finding]:
    """The same check, told by its two numbers: what one request of max_model_len needs, and what there is."""
    needs = next((r for r in e.under("startup:") if r.last and _NEEDED.search(r.name)), None)
    have = e.number("startup:kv_gib", "startup:available_kv_gib", "startup:kv_gib_available")
    if (
        needs is None
        or e.of("kv_too_short")
        or has_load(e)
        or (have is not None and have >= (needs.last or 0))
    ):
        return
    yield Finding(
        Label.OOM_KV,
        f"One request of max_model_len needs {needs.last:g} GiB of KV, more than the pool has",
        (fact(e, needs.name), *given(e, "max-model-len", "gpu-memory-utilization")),
        Advice(
            "--max-model-len auto, or what traffic needs; else more KV: --gpu-memory-utilization, "
            "--kv-cache-dtype fp8, smaller --max-num-batched-tokens",
            "the server starts",
            "longer requests are refused with 400",
            "'Maximum concurrency for … tokens per request' at start is 1.0x or more",
        ),
        _CRITICAL,
        0.75,
        explains=_REFUSED,
    )


_NEEDED = re.compile(r"kv.*(?:need|requir)\w*$")


def nothing_left(e: Evidence) -> Iterator[Finding]:
    """KV budget = utilization x card - weights - peak: below zero, whoever took the memory."""
    spent = [
        event
        for event in e.of("memory_v0", "kv_available")
        if (event.number("kv") or event.number("gib") or 1.0) < 0
    ]
    for event in (e.of("no_blocks") or tuple(spent))[-1:]:
        used = e.flag("gpu-memory-utilization")
        shared = bool(e.of("profile_drift")) or told_beside(e)
        raise_it = used is None or used < 0.9
        # SGLang's fraction holds the weights too: where it is high already, they are what fills it.
        weights = _weights_fill_the_card(e) or (
            e.engine == "sglang" and (e.flag("mem-fraction-static") or 0.0) >= 0.8
        )
        label = Label.NEIGHBOUR if shared else Label.OOM_WEIGHTS if weights else Label.OOM_KV
        yield Finding(
            label,
            "After weights and the profiled peak nothing of the budget is left for KV blocks",
            (said(event), *given(e, "gpu-memory-utilization", "max-num-batched-tokens", "max-model-len")),
            Advice(
                "stop the other process on the card first"
                if shared
                else "--gpu-memory-utilization 0.92"
                if raise_it
                else "--max-num-batched-tokens 2048, more cards (--tensor-parallel-size) or a smaller "
                "checkpoint",
                "leaves the pool what the others gave up",
                "a higher share leaves less for graphs and peaks outside the budget; above 0.95 "
                "start-up or a burst may fail"
                if raise_it
                else "smaller steps: prompts take more of them",
                "'Available KV cache memory' at start is above zero",
            ),
            _CRITICAL,
            0.85,
            also=(Label.OOM_KV,) if label is Label.OOM_WEIGHTS else (),
            rivals=(
                "another process that held memory while this one was profiled: nvidia-smi before the start",
            ),
            explains=_REFUSED,
        )


FILLED = 0.85
"""Of a card, by weights alone: no setting leaves a pool beside them."""


def _weights_fill_the_card(e: Evidence) -> bool:
    if e.engine not in {"vllm", ""} or e.of("loaded", "memory_v0"):
        return False  # a line says what they really take
    weights, card = weights_gib(e), memory_gib(e)
    return bool(weights and card) and (weights or 0.0) / ranks_of(e) >= FILLED * (card or 0.0)


def neighbour_at_start(e: Evidence) -> Iterator[Finding]:
    """Start-up compares what is free on the card with utilization x total, before anything is loaded."""
    for event in e.of("free_below_budget")[-1:]:
        free, total = event.number("free") or 0.0, event.number("total") or 0.0
        taken = total - free
        short = (event.number("budget") or 0.0) - free
        if total and is_unified(e) and not told_beside(e):
            yield _system_took_it(event, free, total)
        elif total and (taken > max(NEIGHBOUR_SHARE * total, CONTEXT_GIB) or short > CONTEXT_GIB):
            yield Finding(
                Label.NEIGHBOUR,
                f"{taken:.1f} of {total:g} GiB were taken before this server began",
                (said(event),),
                Advice(
                    f"find who holds it (nvidia-smi, fuser -v /dev/nvidia*), a leftover engine process "
                    f"first; stop it and start again. Only if it must stay: --gpu-memory-utilization "
                    f"{max(0.0, free / total - 0.02):.2f}",
                    "the whole card for this server",
                    "none",
                    "free memory at start is near the total",
                ),
                _CRITICAL,
                0.92,
                rivals=("a second replica that was started at the same time on the same card",),
                explains=_REFUSED | {Label.OOM_KV},
            )
        elif total:
            most = int(100 * free / total) / 100
            yield Finding(
                Label.BAD_FLAGS,
                f"{event.fields.get('utilization')} of the card was asked for; an empty one has "
                f"{free / total:.1%} free",
                (said(event),),
                Advice(
                    f"--gpu-memory-utilization {most - 0.01:.2f}",
                    "the server starts",
                    f"{taken:.1f} GiB less KV",
                ),
                _CRITICAL,
                0.85,
                explains=_REFUSED,
            )


def _system_took_it(event: Event, free: float, total: float) -> Finding:
    """Card and host have one memory: programs, the desktop and files in the page cache are in it, too."""
    most = int(100 * free / total) / 100
    return Finding(
        Label.BAD_FLAGS,
        f"{event.fields.get('utilization')} of a memory that the host uses, too: {free:.1f} of {total:g} GiB "
        "are free",
        (said(event),),
        Advice(
            f"--gpu-memory-utilization {most - 0.01:.2f}, or --kv-cache-memory-bytes: no share is asked for",
            "the server starts",
            "a smaller pool",
            "free memory before each start (free -g): it differs from boot to boot",
        ),
        _CRITICAL,
        0.8,
        also=(Label.NEIGHBOUR,),
        rivals=("another server, or one that was left over: nvidia-smi, then stop it",),
        explains=_REFUSED | {Label.OOM_KV},
    )


def taken_on_one_card(e: Evidence) -> Iterator[Finding]:
    """Ranks of one model get equal shares: a card on which somebody else has memory stops them all."""
    for event in e.of("unbalanced")[-1:]:
        yield Finding(
            Label.NEIGHBOUR,
            "One card of the group has less memory free than the others: another process is on it",
            (said(event),),
            Advice(
                "nvidia-smi before the start: stop what holds memory of that card, leftovers of a crash",
                "all ranks find the same",
                "none",
                "every card is empty before the start",
            ),
            _CRITICAL,
            0.9,
            explains=_REFUSED | {Label.OOM_KV},
        )


def memory_moved(e: Evidence) -> Iterator[Finding]:
    """Profiling assumes that only this process changes the card's free memory; the check says it did not."""
    for event in e.of("profile_drift")[-1:]:
        yield Finding(
            Label.NEIGHBOUR,
            "Another process freed or took memory of the card while this server was profiling it",
            (said(event),),
            Advice(
                "start servers on one card one after the other, each with --kv-cache-memory-bytes "
                "instead of a share",
                "the profile measures this server alone",
                "the size of the pool is yours to choose",
                "start again with nothing else starting or stopping on the card",
            ),
            _CRITICAL,
            0.9,
            explains=_REFUSED | {Label.OOM_KV},
        )


def _nearest(values: Sequence[float], wanted: float) -> float:
    return min(values, key=lambda value: abs(value - wanted))


def neighbour_gib(e: Evidence) -> float:
    """What other processes hold, by the message: the processes it names but the largest, or what its sums
    lack.
    """
    most = 0.0
    for event in e.of("oom", "oom_load"):
        named = [gib(text) or 0.0 for text in re.findall(r"has ([\d.]+ [KMG]iB) memory in use", event.text)]
        own, total, free = (gib(event.fields.get(name, "")) for name in ("torch", "total", "free"))
        if len(named) > 1:
            most = max(most, sum(named) - _nearest(named, own or max(named)))
        elif own and total and free is not None and named:
            most = max(most, total - free - max(named))
    return max(most, _listed_gib(e))


def _listed_gib(e: Evidence) -> float:
    """What nvidia-smi lists on one card beside its largest process."""
    held = defaultdict[str, list[float]](list)
    for event in e.of("gpu_process"):
        held[event.fields.get("gpu", "")].append((event.number("used") or 0.0) / 1024)
    return max((sum(sizes) - max(sizes) for sizes in held.values()), default=0.0)


_OTHERS = re.compile(
    r"other_?(?:process|server|instance|model(?!\w*tried)|vllm)|neighbou?r|simultaneous|"
    r"same_(?:gpu|card)|co_?tenant|"
    r"second_(?:process|server|instance)|already_used|used_before|instances|processes|"
    r"zombie|leftover|"
    r"two (?:\w[\w.-]* )?(?:replicas|instances|models|servers|processes).{0,20}(?:one|same|a single)|"
    r"the second (?:\w+ ){0,5}(?:does not|fails|crashes|will not|won.t)|"
    r"(?:notebook|jupyter|training|desktop|comfyui|embedding|ollama|old|another|other|leftover) (?:\w+ ){0,4}"
    r"(?:holds?|uses?|occup\w+|keeps?|takes?) .{0,30}(?:gi?b|card|gpu|memory)"
)


_NOBODY = re.compile(r"\s*(?:no|none|nothing|nobody|not|never|0)\b", re.IGNORECASE)


def told_beside(e: Evidence) -> bool:
    """Whether others are on the card: by shares that add up, by the message, or as told."""
    told = [
        r
        for prefix in ("workload:", "hardware:", "gpu:", "host:")
        for r in e.under(prefix)
        if (_OTHERS.search(r.name.lower()) and r.values not in ((0.0,), (1.0,)) and not _NOBODY.match(r.text))
        or _OTHERS.search(r.text.lower())
    ]
    flags = [r for r in e.under("workload:") if _OTHERS.search(r.name.lower()) and r.values == (1.0,)]
    shared = bool(told) or bool(flags)
    return shared or (e.number("host:utilization_sum") or 0.0) > 1.0 or neighbour_gib(e) >= CONTEXT_GIB


def given(e: Evidence, *names: str) -> tuple[Fact, ...]:
    return tuple(fact(e, name) for name in names if name in e.flags)


def multimodal_worst_case(e: Evidence) -> Iterator[Finding]:
    """Start-up profiles the most images and videos one prompt may hold, whether anybody sends them."""
    for event in e.of("mm_worst_case")[-1:]:
        yield Finding(
            Label.OOM_PEAK,
            f"Start-up tries {event.fields['worst']} multi-modal tokens in one prompt, because the "
            f"limits allow them",
            (said(event), *given(e, "limit-mm-per-prompt")),
            Advice(
                "lower --limit-mm-per-prompt and the pixels of an image to what clients send",
                "a smaller profiled peak, so more KV",
                "more images in one prompt are refused",
                "the profiling run passes",
            ),
            _CRITICAL if e.of("profiling_failed", "oom") else Severity.WARNING,
            0.8,
            also=(Label.BAD_FLAGS,),
        )


def told_while_profiling(e: Evidence) -> Iterator[Finding]:
    """Start-up tries the largest images that the model takes, not those that clients send."""
    phase = " ".join(e.text(f"workload:{name}") for name in ("phase", "stage", "when")).lower()
    images = "limit-mm-per-prompt" in e.flags or any("image" in r.name for r in e.under("workload:"))
    if "profil" not in phase or not images or e.of("mm_worst_case") or start_failed(e):
        return
    yield Finding(
        Label.OOM_PEAK,
        "Start-up profiles as many and as large images as the limits allow, and that does not fit",
        given(e, "limit-mm-per-prompt", "gpu-memory-utilization") or (Fact(phase),),
        Advice(
            "--mm-processor-kwargs max_pixels and --limit-mm-per-prompt as clients send them",
            "a smaller profiled peak",
            "larger images are refused or made smaller",
            "the profiling run passes",
        ),
        _CRITICAL,
        0.75,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.UNDETERMINED, Label.OOM_WEIGHTS, Label.OOM_KV}),
    )


RULES = (
    pool_too_short,
    told_pool_too_short,
    nothing_left,
    neighbour_at_start,
    taken_on_one_card,
    memory_moved,
    multimodal_worst_case,
    told_while_profiling,
)
