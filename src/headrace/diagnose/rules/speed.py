"""Settings that cost speed: work moved off the card, steps too small, features that do not pay here."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of, share
from headrace.diagnose.quantities import Quantity, quantities
from headrace.diagnose.rules.contrasts import told_ratios
from headrace.diagnose.rules.machine import share_of_bandwidth
from headrace.diagnose.rules.support import fact, has_load, on_cpu, out_of_memory, said, start_failed

LOW_ACCEPTANCE = 0.4


LEAST_STEP = 1024


CROWD = 64
"""Running requests from which steps are bound by arithmetic, so that rejected drafts cost others."""


@dataclass(frozen=True, slots=True)
class Costly:
    """A setting that costs speed whatever the traffic: `off` is the value that does no harm."""

    flag: str
    off: tuple[object, ...]
    claim: str
    change: str


COSTLY = (
    Costly(
        "cpu-offload-gb",
        (0.0,),
        "part of the weights crosses PCIe in every step",
        "leave --cpu-offload-gb out: a quantised checkpoint, or more cards",
    ),
    Costly(
        "dtype",
        ("auto", "bfloat16", "float16", "half"),
        "weights are twice as large as they need be",
        "--dtype auto",
    ),
    Costly("disable-cuda-graph", (False,), "every kernel's launch is paid at every token", "leave it out"),
    Costly(
        "disable-overlap-schedule",
        (False,),
        "the card waits while the CPU plans the next step",
        "leave it out",
    ),
)


def costly(e: Evidence) -> Iterator[Finding]:
    """Each moves work from the card to the CPU or a link, at every token."""
    if out_of_memory(e) or start_failed(e) or on_cpu(e) or not has_load(e):
        return
    for each in COSTLY:
        given = e.flags.get(each.flag)
        if given is None or given.value in each.off:
            continue
        yield Finding(
            Label.BAD_FLAGS,
            f"--{each.flag} {given.value}: {each.claim}",
            (fact(e, each.flag),),
            Advice(
                each.change,
                "several times faster decoding",
                "memory of the card",
                "tokens a second of one stream",
            ),
            Severity.WARNING,
            0.7,
        )


_WITHOUT = frozenset(
    {
        "graph",
        "graphs",
        "cudagraph",
        "compiled",
        "no",
        "non",
        "without",
        "off",
        "disabled",
        "plain",
        "baseline",
        "default",
        "none",
    }
)


_ON_THE_CPU = frozenset({"logprobs", "penalties", "penalty", "processors", "stops"})
"""Features whose work is done for each token on the CPU."""
_FEATURES = {
    "logprobs": "log probabilities",
    "penalty": "penalties",
    "penalties": "penalties",
    "processors": "logits processors",
    "stops": "stop strings",
    "spec": "speculation",
    "speculative": "speculation",
    "ngram": "speculation",
    "eagle": "speculation",
    "mtp": "speculation",
    "draft": "speculation",
    "lora": "LoRA",
    "eager": "eager mode",
    "awq": "the awq kernel",
    "offload": "offloading",
    "v0": "V0",
    "fp32": "float32",
}


def worse_with_it(e: Evidence) -> Iterator[Finding]:
    """The same measured with and without a feature: it costs more than it brings here."""
    found = quantities(e) + told_ratios(e)
    for word, name in _FEATURES.items():
        without = any(f"no-{word}" in q.situation for q in found)
        with_it = [
            q
            for q in found
            if (word in q.situation and not q.says(_WITHOUT)) or (without and not q.situation)
        ]
        for pair in (
            (a, b)
            for a in with_it
            for b in found
            if b.what == a.what and b.is_rate is a.is_rate and b is not a
        ):
            on, off = pair
            if off.situation - _WITHOUT - {word, f"no-{word}"} or (
                word in off.situation and not off.says(_WITHOUT)
            ):
                continue
            worse = off.last / on.last if on.is_rate and on.last else on.last / off.last if off.last else 0.0
            if worse > 1.15:
                yield Finding(
                    Label.CPU if word in _ON_THE_CPU else Label.BAD_FLAGS,
                    f"{name} makes it {worse:.1f} times worse here",
                    (fact(e, on.name), fact(e, off.name)),
                    Advice(
                        f"leave {name} out, or keep it for the load where it pays",
                        f"{worse:.1f} times",
                        "none",
                    ),
                    Severity.WARNING,
                    0.7,
                    explains=frozenset({Label.UNDETERMINED}),
                )
                return


def format_brings_nothing(e: Evidence) -> Iterator[Finding]:
    """Fewer bytes a weight should be faster; where they are not, no kernel is made for the format,
    or scales and conversions take what it saves.
    """
    found = quantities(e, ("client:", "runs:", "sweep:", "measured:"))
    for small in (q for q in found if q.says(_SMALL)):
        for large in (q for q in found if q.says(_LARGE)):
            same = (small.what, small.is_rate, small.stat) == (large.what, large.is_rate, large.stat)
            if (
                not same
                or small.situation - _SMALL != large.situation - _LARGE
                or not small.last * large.last
            ):
                continue
            worse = large.last / small.last if small.is_rate else small.last / large.last
            if worse > 1.03:
                yield Finding(
                    Label.BAD_FLAGS,
                    f"The quantised weights are {worse:.2f} times slower than the 16-bit ones",
                    (fact(e, small.name), fact(e, large.name)),
                    Advice(
                        "another quantisation that this card has kernels for (compressed-tensors fp8, "
                        "awq_marlin, nvfp4 on Blackwell), a newer version, or the 16-bit weights",
                        "at least the speed of 16 bits",
                        "memory, with 16 bits",
                        "the same benchmark with both",
                    ),
                    Severity.WARNING,
                    0.7,
                    also=(Label.COMPUTE,) if small.what in {"ttft", "prefill"} else (),
                    explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.EXPECTED}),
                )
                return


def _kind_of(quantity: Quantity, formats: frozenset[str]) -> tuple[object, ...]:
    return quantity.what, quantity.is_rate, quantity.stat, quantity.situation - formats


_SMALL = frozenset(
    {"fp8", "int8", "int4", "w8a8", "w4a16", "awq", "gptq", "nvfp4", "fp4", "quantized", "quantised"}
)
_LARGE = frozenset({"bf16", "fp16", "bfloat16", "float16", "half", "unquantized", "unquantised"})


def tiny_steps(e: Evidence) -> Iterator[Finding]:
    """A step costs its launches and the reading of all weights, however few tokens it computes: below about a
    thousand tokens a prompt pays that many times over.
    """
    budget = e.flag("max-num-batched-tokens")
    reads = [q for q in quantities(e) if q.what in {"prefill", "prompt", "ttft"}]
    if budget is not None and 0 < budget < LEAST_STEP and reads and not on_cpu(e) and not start_failed(e):
        yield Finding(
            Label.BAD_FLAGS,
            f"Steps hold {budget:g} tokens at most, so prompts are read in many small ones",
            (fact(e, "max-num-batched-tokens"), fact(e, reads[0].name)),
            Advice(
                "--max-num-batched-tokens 2048 to 8192, and --long-prefill-token-threshold for streams",
                "prompt tokens a second, several times",
                "gaps between tokens of running streams grow with the step",
                "prompt tokens a second, and P99 of ITL",
            ),
            Severity.WARNING,
            0.8 if budget <= LEAST_STEP / 4 else 0.6,
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
        )


def above_the_graphs(e: Evidence) -> Iterator[Finding]:
    """SGLang runs batches beyond the largest captured one without a graph: every launch is paid again."""
    for event in e.of("no_graph")[-1:]:
        yield Finding(
            Label.BAD_FLAGS,
            f"{e.counts['no_graph']} decode batches ran without a CUDA graph: they are larger than the "
            f"largest captured",
            (said(event), *(fact(e, name) for name in ("cuda-graph-max-bs",) if name in e.flags)),
            Advice(
                "--cuda-graph-max-bs as large as the batches there are",
                "tokens a second at that load",
                "memory for the graphs: --mem-fraction-static a little lower",
                "'cuda graph: True' in the decode lines",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.CPU,),
        )


def partly_on_cpu(e: Evidence) -> Iterator[Finding]:
    """llama.cpp leaves the layers that were not asked for on the CPU: each token waits for them."""
    on_gpu, layers = e.number("startup:layers_on_gpu"), e.number("startup:layers")
    if on_gpu is not None and layers and on_gpu < layers:
        yield Finding(
            Label.BAD_FLAGS,
            f"{layers - on_gpu:.0f} of {layers:.0f} layers are computed on the CPU",
            (fact(e, "startup:layers_on_gpu"),),
            Advice(
                "-ngl 99; make room with a smaller context or quantisation",
                "several times faster",
                "memory of the card",
            ),
            Severity.WARNING,
            0.75,
            also=(Label.CPU,),
            explains=frozenset({Label.UNDETERMINED}),
        )


def speculation(e: Evidence) -> Iterator[Finding]:
    """Drafting pays while steps are bound by reading weights; rejected drafts cost compute that a batch
    needs.
    """
    drafts = e.number("vllm:spec_decode_num_draft_tokens_total")
    accepted = e.number("vllm:spec_decode_num_accepted_tokens_total")
    rate = (
        accepted / drafts
        if drafts and accepted is not None
        else e.number(
            "log:draft_acceptance",
            "client:acceptance_rate",
            "vllm:spec_decode_draft_acceptance_rate",
            "log:acceptance_rate",
            "spec:acceptance_rate",
        )
    )
    on = any(name.startswith(("spec", "num-spec")) for name in e.flags) or rate is not None
    crowded = load_of(e).peak_running >= CROWD
    if on and rate is not None and share(rate) < LOW_ACCEPTANCE:
        yield Finding(
            Label.BAD_FLAGS,
            f"Only {share(rate):.0%} of drafted tokens are kept: speculation costs more than it brings",
            tuple(fact(e, r.name) for r in e.readings.values() if "accept" in r.name)[:3],
            Advice(
                "fewer draft tokens, another drafter, or none above the concurrency where it stops paying",
                "throughput of a full batch",
                "slower single streams",
                "tokens a second with and without, at your concurrency",
            ),
            Severity.WARNING,
            0.65,
            also=(Label.COMPUTE,) if crowded else (),
            explains=frozenset({Label.QUEUEING, Label.UNDETERMINED} if crowded else {Label.UNDETERMINED}),
        )


def no_layers_asked_for(e: Evidence) -> Iterator[Finding]:
    """llama.cpp before it fitted layers by itself put none on the card unless told: -ngl was 0."""
    given = any(name in e.flags for name in ("n-gpu-layers", "ngl", "gpu-layers"))
    build = re.fullmatch(r"b(\d+)", e.version)
    reached = share_of_bandwidth(e)
    if e.engine != "llama.cpp" or given or not e.flags or build is None or int(build[1]) >= FITS_LAYERS:
        return
    if reached is not None and reached[0] < 0.2 and e.number("startup:layers_on_gpu") is None:
        yield Finding(
            Label.BAD_FLAGS,
            f"{reached[0]:.0%} of what the card's memory allows, and no -ngl: this version "
            "computes all layers on "
            f"the CPU",
            (Fact(reached[1]), Fact(f"build {e.version}")),
            Advice("-ngl 99", "several times faster", "memory of the card", "'offloaded N/N layers to GPU'"),
            Severity.WARNING,
            0.8,
            also=(Label.CPU,),
            explains=frozenset({Label.UNDETERMINED, Label.CPU, Label.MEMORY_BANDWIDTH}),
        )


FITS_LAYERS = 6000
"""Builds: long before the first that chose the layers on the card by itself."""


RULES = (
    format_brings_nothing,
    worse_with_it,
    partly_on_cpu,
    tiny_steps,
    above_the_graphs,
    speculation,
    costly,
    no_layers_asked_for,
)
