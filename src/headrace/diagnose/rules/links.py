"""More cards than pay: steps that wait for each other's parts."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.quantities import degrees, quantities
from headrace.diagnose.rules.support import fact, out_of_memory, said, start_failed
from headrace.diagnose.sizes import (
    tensor_parallel,
)


def wider_is_not_faster(e: Evidence) -> Iterator[Finding]:
    """The same measured over fewer and more cards: a rate that hardly grows, a latency that hardly falls."""
    for is_rate in (True, False):
        seen = degrees([q for q in quantities(e) if q.is_rate is is_rate], tensor_parallel(e))
        if len(seen) < 2 or seen[0][0] == seen[-1][0]:
            continue
        (few, least), (many, most) = seen[0], seen[-1]
        gain = (
            most.last / least.last if is_rate and least.last else least.last / most.last if most.last else 0.0
        )
        if gain < 0.65 * many / few:
            yield Finding(
                Label.INTERCONNECT,
                f"{many:g} cards give {gain:.2g} times what {few:g} give: steps wait for each other's parts",
                (fact(e, least.name), fact(e, most.name)),
                Advice(
                    "replicas instead of a wider split; NVLink rather than PCIe where it must be split",
                    "tokens a second",
                ),
                Severity.WARNING,
                0.75,
                also=(Label.BAD_FLAGS,),
                explains=frozenset({Label.COMPUTE, Label.UNDETERMINED, Label.QUEUEING}),
            )
            return


def link_turned_off(e: Evidence) -> Iterator[Finding]:
    """Variables that forbid NCCL the fast way between cards: activations then cross host memory or TCP."""
    told = (*e.under("env:"), *e.under("hardware:"), *e.under("workload:"))
    off = [reading for reading in told if _turned_off(reading)]
    several = tensor_parallel(e) >= 2 or (e.number("hardware:nodes") or 1) > 1
    if off and several and not start_failed(e):
        yield Finding(
            Label.INTERCONNECT,
            "The fast way between cards is turned off by hand",
            tuple(Fact(f"{r.name} {r.text}"[:120], r.where) for r in off[:3]),
            Advice(
                "unset NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_SHM_DISABLE, or split within what is joined",
                "tokens a second",
                "what they were set against may come back",
                "nccl-tests all_reduce_perf with and without",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.BAD_FLAGS,),
            explains=frozenset({Label.BAD_FLAGS, Label.UNDETERMINED}),
        )


_NO_P2P = re.compile(r"nccl_p2p_disable\W{0,3}1")
_WORKS = re.compile(r"work|fix|help|solv|workaround|without|only with|runs with|starts with")


def works_without_peers(e: Evidence) -> Iterator[Finding]:
    """A first all-reduce that never ends, and does once cards no longer write into each other's memory: the
    way between them is broken (ACS and IOMMU send it by the root complex), not the engine.
    """
    told = [
        r for r in (*e.under("workload:"), *e.under("env:")) if _NO_P2P.search(f"{r.name} {r.text}".lower())
    ]
    helps = [r for r in told if _WORKS.search(f"{r.name} {r.text}".lower())]
    redirected = e.of("acs_redirect")
    hangs = bool(e.of("stalled", "engine_dead")) or re.search(r"hang|hung|deadlock|stuck|never", e.told())
    if tensor_parallel(e) < 2 or not hangs or not (helps or redirected):
        return
    yield Finding(
        Label.INTERCONNECT,
        "Cards cannot write into each other's memory, and the first exchange waits for ever",
        (
            *(Fact(f"{r.name} {r.text}"[:120], r.where) for r in helps[:1]),
            *(said(event) for event in redirected[:1]),
        ),
        Advice(
            "turn ACS off on the bridges between the cards (BIOS, setpci, or pci=noacs) and IOMMU to "
            "passthrough; until then NCCL_P2P_DISABLE=1",
            "the server starts, and cards exchange directly",
            "isolation of the devices from each other, which virtual machines need",
            "p2pBandwidthLatencyTest, then nccl-tests all_reduce_perf",
        ),
        Severity.CRITICAL,
        0.85,
        explains=frozenset({Label.STALL, Label.COLD_START, Label.UNDETERMINED, Label.BAD_FLAGS}),
    )


def _turned_off(reading: Reading) -> bool:
    told = f"{reading.name} {reading.text} {reading.last or ''}"
    return re.search(r"NCCL_(?:P2P|IB|SHM)_DISABLE\W+1", told, re.IGNORECASE) is not None


def slow_link(e: Evidence) -> Iterator[Finding]:
    """Tensor parallelism sends activations twice a layer: over Ethernet or PCIe that is most of a small
    step.
    """
    text = " ".join(f"{r.name} {r.text}" for r in e.under("hardware:")).lower()
    without = any(
        r.last == 0 and re.search(r"nvlink|p2p|rdma|infiniband", r.name) for r in e.under("hardware:")
    )
    link = re.search(
        r"ethernet|\d+ ?gbe|\btcp\b|pcie|no[ _]nvlink|without[ _]nvlink|no[ _](?:rdma|infiniband|p2p)|socket",
        text,
    )
    nodes = e.number("hardware:nodes", "hardware:node_count", "workload:nodes") or 1.0
    per_node = (
        e.number("hardware:gpus_per_node", "hardware:gpu_per_node")
        or (e.number("hardware:gpu_count") or 0.0) / nodes
    )
    across = nodes > 1 and per_node > 0 and tensor_parallel(e) > per_node
    if (
        start_failed(e)
        or (tensor_parallel(e) < 2 and nodes < 2)
        or not (across or ((link or without) and (e.flag("pipeline-parallel-size") is None or nodes > 1)))
    ):
        return
    yield Finding(
        Label.INTERCONNECT,
        f"{tensor_parallel(e)} cards exchange every layer's activations "
        + ("between nodes" if across else f"over {link[0] if link else 'a link without NVLink'}"),
        tuple(fact(e, r.name) for r in e.under("hardware:"))[:4],
        Advice(
            "--tensor-parallel-size no wider than what NVLink joins, --pipeline-parallel-size between "
            "nodes, or replicas",
            "tokens a second; TTFT of a pipeline is as before",
            "a pipeline needs several requests at once to be full",
            "nccl-tests all_reduce_perf, and tokens a second of both",
        ),
        Severity.WARNING,
        0.7,
        also=(Label.BAD_FLAGS,),
        explains=frozenset({Label.BAD_FLAGS, Label.CPU, Label.UNDETERMINED}),
    )


def link_failed(e: Evidence) -> Iterator[Finding]:
    """NCCL says that ranks cannot reach each other: no step of a split model ends without all of them."""
    events = e.of("nccl")
    if not events or out_of_memory(e):
        return
    yield Finding(
        Label.INTERCONNECT,
        "The ranks of a split model cannot talk to each other: NCCL fails",
        tuple(said(event) for event in events[:2]),
        Advice(
            "NCCL_DEBUG=INFO names the link; then the interface (NCCL_SOCKET_IFNAME), shared memory of "
            "the container (--ipc=host or --shm-size), peer access (NCCL_P2P_DISABLE=1 to test), drivers",
            "the ranks start",
            "a slower link, where one is turned off",
            "nccl-tests all_reduce_perf over the same cards",
        ),
        Severity.CRITICAL,
        0.65,
        also=(Label.STALL,),
        rivals=("another rank that died first (out of memory, killed): the earliest error of all ranks",),
    )


RULES = (
    link_failed,
    wider_is_not_faster,
    works_without_peers,
    link_turned_off,
    slow_link,
)
