"""Whether model, cards and flags suit each other: arithmetic on names, before anything runs."""

import re
from collections import defaultdict
from collections.abc import Iterator

from headrace.diagnose.evidence import Event, Evidence, Reading
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import load_of
from headrace.diagnose.rules.settings import is_speed_asked
from headrace.diagnose.rules.support import (
    fact,
    has_load,
    out_of_memory,
    prompt_tokens,
    said,
    start_failed,
    tells_of_oom,
)
from headrace.diagnose.sizes import (
    card_count,
    cards_of,
    hardware_text,
    memory_gib,
    model_of,
    ranks_of,
    tensor_parallel,
    weights_gib,
)

LEAST_KV_SHARE = 0.08
"""Of a card: a pool smaller than this holds hardly a request of a large model."""


SMALL_BUDGET = 0.5
"""A share that low was meant for another model or another card."""
SPLIT_TOO_FAR = 0.45
"""Of a card: weights that take less of it on half as many cards did not need the others."""


FITS = 0.8
"""Of a card: weights that take more of it leave no KV pool worth having."""
LITTLE_A_CARD_GIB = 8.0
"""Weights that a card reads in a few milliseconds: the all-reduces of a step take as long."""


NO_HEADROOM = 0.98


def _is_seen(e: Evidence) -> bool:
    return has_load(e) or any(e.under("host:"))


def no_headroom(e: Evidence) -> Iterator[Finding]:
    """Graphs, the sampler, NCCL and other contexts live outside the budget: what it leaves must hold them."""
    asked = e.flag("gpu-memory-utilization") or e.flag("mem-fraction-static")
    if (
        asked is not None
        and asked >= NO_HEADROOM
        and not out_of_memory(e)
        and not e.counts.get("stats")
        and not _is_seen(e)
    ):
        yield Finding(
            Label.OOM_PEAK,
            f"{asked:g} of the card is given to weights and KV: nothing is left for what lives outside "
            f"the budget",
            tuple(
                fact(e, name) for name in ("gpu-memory-utilization", "mem-fraction-static") if name in e.flags
            ),
            Advice(
                "0.90 to 0.95", "start-up and bursts pass", "a few per cent less KV", "graph capture passes"
            ),
            Severity.WARNING,
            0.5,
        )


def unequal_cards(e: Evidence) -> Iterator[Finding]:
    """Tensor parallelism gives every card the same share, so the smallest sets the limit for all."""
    cards = cards_of(hardware_text(e))
    if tensor_parallel(e) > 1 and len({round(card.memory_gib) for card in cards}) > 1:
        least = min(cards, key=lambda card: card.memory_gib)
        facts = (
            Fact(" and ".join(f"{c.name}: {c.memory_gib:g} GiB" for c in cards), e.where("hardware:gpu")),
        )
        yield Finding(
            Label.BAD_FLAGS if load_of(e).running else Label.OOM_WEIGHTS,
            f"Every card gets the same share; {least.name} with {least.memory_gib:g} GiB sets the limit",
            (*facts, fact(e, "tensor-parallel-size")),
            Advice(
                f"--pipeline-parallel-size {tensor_parallel(e)} instead of --tensor-parallel-size: "
                f"layers can be split unevenly (VLLM_PP_LAYER_PARTITION)",
                "each card is filled by what it has",
                "a single request is no faster than one card",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.OOM_WEIGHTS,) if load_of(e).running else (Label.BAD_FLAGS,),
        )


def will_not_fit(e: Evidence) -> Iterator[Finding]:
    """Budget of a rank = utilization x card; weights alone may exceed it, or leave no room for KV."""
    weights, card = weights_gib(e), memory_gib(e)
    asked = e.flag("gpu-memory-utilization") or flag_facts().default("gpu-memory-utilization", e.release)
    failed = tells_of_oom(e) and asked >= SMALL_BUDGET
    if weights is None or card is None or failed or load_of(e).running or has_load(e):
        return
    if e.engine in _READS_FILES and "quantization" not in f"{e.told()} {' '.join(e.flags)}":
        return  # a GGUF file has its own precision, and layers that do not fit stay on the host
    ranks = ranks_of(e)
    if "tensor-parallel-size" not in e.flags and "pipeline-parallel-size" not in e.flags:
        ranks = card_count(e)
    each = weights / ranks
    facts = (
        Fact(f"{model_of(e)}: about {weights:.0f} GiB of weights, {each:.1f} GiB a card on {ranks}"),
        Fact(f"card {card:g} GiB x {asked:g} = {asked * card:.1f} GiB", e.where("gpu-memory-utilization")),
    )
    if each > card:
        yield Finding(
            Label.OOM_WEIGHTS,
            f"About {each:.0f} GiB of weights a card do not fit {card:g} GiB",
            facts,
            Advice("more cards (--tensor-parallel-size) or a quantised checkpoint", "the weights fit"),
            Severity.CRITICAL,
            0.75,
        )
    elif each > (asked - LEAST_KV_SHARE) * card:
        many = (e.flag("max-num-seqs") or 0) >= 512
        tiny = asked < SMALL_BUDGET
        yield Finding(
            Label.BAD_FLAGS if tiny else Label.OOM_KV,
            f"The budget of {asked * card:.1f} GiB a card is spent on weights ({each:.1f} GiB): nothing "
            f"is left for KV",
            facts,
            Advice(
                "--gpu-memory-utilization 0.90 to 0.92"
                if asked < 0.9
                else "more cards or a quantised checkpoint",
                f"{(0.92 - asked) * card:.1f} GiB more for KV" if asked < 0.9 else "room for KV",
                "less outside the budget for graphs and peaks"
                if asked < 0.9
                else "cards, or a little quality",
                "change one thing at a time; 'Available KV cache memory' at start",
            ),
            Severity.CRITICAL,
            0.7,
            also=(Label.OOM_KV,) if tiny else (Label.OOM_PEAK,) if many else (),
            explains=frozenset({Label.OOM_PEAK, Label.OOM_WEIGHTS} if tiny else set[Label]()),
        )


_READS_FILES = frozenset({"llama.cpp", "ollama"})


def split_too_far(e: Evidence) -> Iterator[Finding]:
    """Two all-reduces a layer cost the same however small the share of a card; weights read by each
    shrink.
    """
    ranks, weights = tensor_parallel(e), weights_gib(e)
    if ranks < 2 or start_failed(e) or out_of_memory(e):
        return
    slow_link = bool(e.of("no_peer_access")) or bool(
        re.search(r"pcie|no nvlink|without nvlink|ethernet|sys\b", e.told())
    )
    card = memory_gib(e) or 24.0
    fits_half = weights is not None and weights / (ranks / 2) < SPLIT_TOO_FAR * card
    fits_fewer = weights is not None and weights / (ranks / 2) < FITS * card
    little = weights is not None and fits_fewer and weights / ranks < LITTLE_A_CARD_GIB
    if not (slow_link or (fits_half and ranks >= 4) or (little and ranks >= 2)):
        return
    busy = load_of(e).peak_waiting > 0 or load_of(e).peak_kv >= 0.5
    if busy or (list(e.under("gpu:mem")) and not is_speed_asked(e)):
        return
    facts = [fact(e, "tensor-parallel-size")]
    if weights is not None:
        facts.append(Fact(f"about {weights / ranks:.1f} GiB of weights a card, of {card:g} GiB"))
    facts += [said(event) for event in e.of("no_peer_access")[:1]]
    half = ranks // 2
    replicas = (
        f"{ranks // half} replicas of --tensor-parallel-size {half}"
        if half > 1
        else f"{ranks} replicas of one card"
    )
    yield Finding(
        Label.BAD_FLAGS,
        f"{ranks} cards share a model that needs fewer: each step waits for all-reduces",
        tuple(facts),
        Advice(
            f"{replicas} behind a router, or --pipeline-parallel-size where it does not fit one card",
            "more tokens a second from the same cards",
            "a single stream may be slower; KV of one request is bounded by fewer cards",
            "tokens a second of all streams together, and of one",
        ),
        Severity.WARNING,
        0.6 if weights is not None else 0.5,
        also=(Label.INTERCONNECT,),
        rivals=("the CPU that launches kernels for every rank: nsys, or CPU use by process",),
    )


def profile_below_served(e: Evidence) -> Iterator[Finding]:
    """Where chunked prefill is not on by default, a prompt is computed whole, beyond what start-up tried."""
    longest = max(prompt_tokens(e), default=0.0)
    chunked = "enable-chunked-prefill" in e.flags or "max-num-batched-tokens" in e.flags
    by_default = e.release is None or e.release >= (0, 8, 0)
    other_device = bool(re.search(r"ascend|npu|gaudi|hpu|tpu", e.told()))
    if chunked or has_load(e) or longest < 16_384 or (by_default and not other_device):
        return
    yield Finding(
        Label.OOM_PEAK,
        f"A prompt of {longest:,.0f} tokens may be computed in one step, far above what start-up profiled",
        (
            Fact(
                f"longest prompt {longest:,.0f} tokens; no --max-num-batched-tokens, no "
                f"--enable-chunked-prefill"
            ),
        ),
        Advice(
            "--enable-chunked-prefill --max-num-batched-tokens 2048 to 8192",
            "the largest step is the one that was profiled",
            "a long prompt takes several steps",
            "the same prompt, with nvidia-smi or npu-smi beside it",
        ),
        Severity.WARNING,
        0.5,
    )


def pool_by_estimate(e: Evidence) -> Iterator[Finding]:
    """The pool is what the budget leaves: two starts that differ in it differ in what was reserved beside
    it.
    """
    sizes = [r for r in e.under("startup:") if _POOL.search(r.name) and r.last]
    by_stem = defaultdict[str, list[Reading]](list)
    for reading in sizes:
        by_stem["".join(_POOL.findall(reading.name))].append(reading)
    for same in by_stem.values():
        least, most = (pick(same, key=lambda r: r.last or 0.0) for pick in (min, max))
        if (most.last or 0.0) > 1.3 * (least.last or 1.0):
            yield Finding(
                Label.KV_CAPACITY,
                f"The KV pool is {(most.last or 0) / (least.last or 1):.1f} times smaller than the same "
                f"server had otherwise",
                (fact(e, least.name), fact(e, most.name)),
                Advice(
                    "compare the memory summary of both starts: a longer profiled prompt (--max-model-len "
                    "before V1, --max-num-batched-tokens since), graphs (fewer --cudagraph-capture-sizes), "
                    "a version that over-estimates them (0.21 on)",
                    "the pool of before",
                    "with the estimate of graphs off, capture itself may run out of memory",
                    "'GPU KV cache size' at start",
                ),
                Severity.WARNING,
                0.75,
                explains=frozenset({Label.UNDETERMINED, Label.SHIFT}),
            )
            return


_POOL = re.compile(r"kv_cache_tokens|kv_tokens|kv_gib|(?:num_)?gpu_blocks|kv_blocks|cache_blocks")


def pool_eaten(e: Evidence) -> Iterator[Finding]:
    """What start-up itself says it takes from the pool: graphs in the budget, layers padded to one size,
    sliding layers that are given room for everything.
    """
    graphs = [x for x in e.of("graph_estimate") if _lost(x) >= NOTABLE_LOSS]
    padding = [x for x in e.of("padding") if (x.number("percent") or 0) >= 20]
    lines = (*graphs[-1:], *padding[-1:], *e.of("hybrid_off")[-1:])
    if not lines or start_failed(e) or load_of(e).running:
        return
    yield Finding(
        Label.KV_CAPACITY,
        "The KV pool is smaller than the card would allow: start-up says what it gives away",
        tuple(said(line) for line in lines),
        Advice(
            "a newer version (the estimate of graphs, hybrid pools); fewer --cudagraph-capture-sizes or a "
            "lower --max-num-seqs; more --gpu-memory-utilization, by as much as the line says",
            "as many more tokens as were given away",
            "less outside the budget",
            "'GPU KV cache size' at start",
        ),
        Severity.NOTE,
        0.6,
        explains=frozenset({Label.UNDETERMINED}),
    )


NOTABLE_LOSS = 0.04
"""Of the card: less is what graphs take everywhere."""


def _lost(event: Event) -> float:
    return (event.number("asked") or 0.0) - (event.number("without") or 0.0)


def host_memory_asked(e: Evidence) -> Iterator[Finding]:
    """What is set aside in host memory is so for each rank: swap space (V0), weights, a tier for KV."""
    ram = e.number(*(f"{p}:{n}" for p in ("hardware", "host") for n in _RAM))
    ranks = max(tensor_parallel(e), 1)
    asked = {
        "swap-space": (e.flag("swap-space") or 0.0) * ranks,
        "cpu-offload-gb": (e.flag("cpu-offload-gb") or 0.0) * ranks,
        "kv-offloading-size": e.flag("kv-offloading-size") or 0.0,
        "mm-processor-cache-gb": (e.flag("mm-processor-cache-gb") or 0.0)
        * (e.flag("api-server-count") or 1.0),
    }
    total = sum(asked.values())
    if ram and total > 0.7 * ram:
        yield Finding(
            Label.HOST_MEMORY,
            f"Flags ask for {total:g} GiB of host memory, the host has {ram:g}",
            tuple(fact(e, name) for name, size in asked.items() if size),
            Advice(
                "less of it: the sizes are for each rank",
                "the process lives",
                "a smaller tier",
                "free memory of the host under load",
            ),
            Severity.WARNING,
            0.7,
            explains=frozenset({Label.UNDETERMINED}),
        )


_RAM = (
    "ram_gib",
    "ram_gb",
    "memory_gib",
    "memory_gb",
    "host_memory_gib",
    "mem_total_gib",
    "memory_limit_gib",
)


def shared_card(e: Evidence) -> Iterator[Finding]:
    """Shares are of the whole card: what several servers ask for adds up."""
    servers = e.number("host:servers_started", "workload:instances", "hardware:instances") or 1.0
    total = e.number("host:utilization_sum")
    if total is None and (asked := e.flag("gpu-memory-utilization")) and servers > card_count(e):
        total = asked * servers / card_count(e)
    if servers > 1 and total and total > 1.0:
        yield Finding(
            Label.NEIGHBOUR,
            f"{servers:.0f} servers ask for {total:.2f} of the card together",
            tuple(fact(e, r.name) for r in e.under("host:"))
            + tuple(fact(e, r.name) for r in e.under("workload:inst")),
            Advice(
                "--kv-cache-memory-bytes for each so that all fit, started one after the other",
                "each server finds what it asked for",
                "smaller pools",
            ),
            Severity.WARNING,
            0.7,
            rivals=("nothing, if they are on different cards (CUDA_VISIBLE_DEVICES)",),
        )


RULES = (
    unequal_cards,
    will_not_fit,
    profile_below_served,
    pool_by_estimate,
    pool_eaten,
    shared_card,
    host_memory_asked,
    split_too_far,
    no_headroom,
)
