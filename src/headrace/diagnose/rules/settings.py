"""Flags that undo each other, and ones that do not suit the model or the cards."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import load_of
from headrace.diagnose.missing_flags import missing_flags
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.contrasts import changed_nothing
from headrace.diagnose.rules.support import fact, on_cpu, out_of_memory, said, start_failed


def fewer_tokens_than_seqs(e: Evidence) -> Iterator[Finding]:
    """The SchedulerConfig of vLLM ends such a start; where a log says so, `refused` does."""
    tokens, seqs = e.flag("max-num-batched-tokens"), e.flag("max-num-seqs")
    if e.engine != "vllm" or tokens is None or seqs is None or e.of("config_error") or e.counts.get("ready"):
        return
    if tokens < seqs:
        yield Finding(
            Label.BAD_FLAGS,
            f"--max-num-batched-tokens {tokens:.0f} is below --max-num-seqs {seqs:.0f}: vLLM does not start, "
            "as each running request needs a token of every step",
            (fact(e, "max-num-batched-tokens"), fact(e, "max-num-seqs")),
            Advice(
                f"--max-num-batched-tokens {seqs:.0f} or more (2048 is a usual start), or --max-num-seqs "
                f"{tokens:.0f} or less",
                "the server starts",
            ),
            Severity.CRITICAL,
            0.9,
            explains=frozenset({Label.UNDETERMINED}),
        )


def slow_kernels(e: Evidence) -> Iterator[Finding]:
    """--quantization awq forbids the marlin kernel; eager mode pays every kernel's launch at each token."""
    if out_of_memory(e) or start_failed(e) or on_cpu(e):
        return
    awq = "quantization" in e.flags and str(e.flags["quantization"].value).lower() in {"awq", "gptq"}
    eager = e.is_on("enforce-eager") and is_speed_asked(e) and "enforce-eager" not in changed_nothing(e)
    if not (awq or eager):
        return
    changes, facts = list[str](), list[Fact]()
    if awq:
        changes.append("leave --quantization out (the checkpoint says it, and awq_marlin is chosen)")
        facts.append(fact(e, "quantization"))
    if eager:
        changes.append("leave --enforce-eager out")
        facts.append(fact(e, "enforce-eager"))
    yield Finding(
        Label.BAD_FLAGS,
        "Decoding runs without " + " and ".join(["the fast kernel"] * awq + ["CUDA graphs"] * eager),
        tuple(facts),
        Advice(
            " and ".join(changes),
            "several times faster decoding at small batches",
            "graphs take 0.5 to 2 GiB",
            "tokens a second of one stream",
        ),
        Severity.WARNING,
        (0.75 if is_speed_asked(e) else 0.55) if awq else 0.6,
        rivals=("a LoRA rank above the adapter's: --max-lora-rank",) if e.is_on("enable-lora") else (),
    )


def debugging_on(e: Evidence) -> Iterator[Finding]:
    """Tracing every call, waiting for every kernel, profiling: what helps to find a fault slows all else."""
    told = [r for r in e.readings.values() if _DEBUGGING.search(f"{r.name} {r.text}") and r.values != (0.0,)]
    lines = e.of("debugging")
    if told or lines:
        yield Finding(
            Label.BAD_FLAGS,
            "The server runs with a setting for debugging, which slows every call",
            tuple(said(line) for line in lines[:1])
            + tuple(Fact(f"{r.name} {r.text}"[:120], r.where) for r in told[:2]),
            Advice(
                "unset VLLM_TRACE_FUNCTION, CUDA_LAUNCH_BLOCKING, the profiler; VLLM_LOGGING_LEVEL=INFO",
                "start and steps at their own speed",
                "less to read in the log",
                "the same start, timed",
            ),
            Severity.WARNING,
            0.85,
            explains=frozenset({Label.COLD_START, Label.CPU, Label.UNDETERMINED}),
        )


_DEBUGGING = re.compile(
    r"VLLM_TRACE_FUNCTION|CUDA_LAUNCH_BLOCKING|TORCH_CUDNN_DEBUG|compute-sanitizer|valgrind"
)


def is_speed_asked(e: Evidence) -> bool:
    speeds = any(
        q.what in {"decode", "output", "generation", "itl", "tpot", "throughput"} for q in quantities(e)
    )
    compared = any(r.name.startswith("workload:reference") for r in e.under("workload:"))
    return speeds or compared or max(e.series("log:gen_tok_s"), default=0.0) > 0


def without_effect(e: Evidence) -> Iterator[Finding]:
    """V1 plans prefills otherwise than V0: some flags of V0 are refused with most values there, or do
    nothing.
    """
    known = [flag_facts().gone[name] for name in e.flags if name in flag_facts().gone]
    idle = [f for f in known if f.idle is not None and (e.release is None or e.release >= f.idle)]
    missing = {flag.name for flag in missing_flags(e)}
    idle = [flag for flag in idle if flag.name not in missing]
    if idle and e.engine in {"vllm", ""} and not e.of("unknown_flag"):
        yield Finding(
            Label.BAD_FLAGS,
            ", ".join(f"--{flag.name}" for flag in idle)
            + ": refused by V1's scheduler, or without effect there",
            (
                *(fact(e, flag.name) for flag in idle),
                *(Fact(f"--{flag.name}: {flag.source}") for flag in idle),
            ),
            Advice(
                "; ".join(f"--{flag.name} -> {flag.instead}" for flag in idle),
                "long prompts leave room for others",
            ),
            Severity.WARNING,
            0.7 if e.release else 0.5,
        )


def lora_slots(e: Evidence) -> Iterator[Finding]:
    """A request for an adapter beyond --max-loras (1 by default) is skipped until a slot is free."""
    load = load_of(e)
    slots = e.flag("max-loras") or 1.0
    if (
        e.is_on("enable-lora")
        and load.peak_waiting > 0
        and load.running
        and load.peak_kv < 0.5
        and load.running[-1] <= slots * 4
    ):
        yield Finding(
            Label.BAD_FLAGS,
            f"{load.peak_waiting:.0f} wait and {load.running[-1]:.0f} run with {load.peak_kv:.0%} of KV "
            f"used: {slots:g} adapter at a time",
            _of_load(e),
            Advice(
                "--max-loras = adapters asked for at the same time",
                "requests for other adapters run beside each other",
                "memory for each slot: rank x layers",
                "vllm:lora_requests_info shows several running adapters",
            ),
            Severity.WARNING,
            0.7,
            also=(Label.QUEUEING,),
            rivals=(
                (
                    "a grammar that is still compiling, or KV still being fetched: "
                    "num_requests_waiting_by_reason"
                ),
            ),
            explains=frozenset({Label.QUEUEING, Label.STALL, Label.CPU}),
        )


def _of_load(e: Evidence) -> tuple[Fact, ...]:
    return tuple(fact(e, name) for name in load_of(e).names.values() if name in e.readings)


def binds_more_than_there_are(e: Evidence) -> Iterator[Finding]:
    """VLLM_CPU_OMP_THREADS_BIND: one part between bars for each rank, so a list of single cores gives the
    only rank one of them.
    """
    name = "VLLM-CPU-OMP-THREADS-BIND"
    parts = str(e.flags[name].value).count("|") + 1 if name in e.flags else 1
    ranks = max(1, int((e.flag("tensor-parallel-size") or 1) * (e.flag("pipeline-parallel-size") or 1)))
    if parts <= ranks or start_failed(e):
        return
    yield Finding(
        Label.BAD_FLAGS,
        f"{parts} groups of cores are given to {ranks} rank{'s' if ranks > 1 else ''}: "
        "the others are not used",
        (fact(e, name),),
        Advice(
            "a range for each rank (VLLM_CPU_OMP_THREADS_BIND=0-7), bars only between ranks",
            f"up to {parts / ranks:g} times",
            "none",
            "as many busy cores as were meant",
        ),
        Severity.WARNING,
        0.85,
        explains=frozenset(
            {Label.UNDETERMINED, Label.MEASUREMENT, Label.COMPUTE, Label.MEMORY_BANDWIDTH, Label.CPU}
        ),
    )


RULES = (
    debugging_on,
    fewer_tokens_than_seqs,
    without_effect,
    lora_slots,
    slow_kernels,
    binds_more_than_there_are,
)
