"""Settings that vLLM refuses together when it starts, by version, from the flags alone.

    Settings -> every check whose versions fit -> Refusal(claim, names, change)

Each check is the condition under which one release or another raises in config/*.py or engine/arg_utils.py.
In which releases it stands was read in their source.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.diagnose.flag_history import Release
from headrace.diagnose.settings_of import Settings


@dataclass(frozen=True, slots=True)
class Refusal:
    """`names`: the flags and readings it rests on."""

    claim: str
    names: tuple[str, ...]
    change: str
    is_certain: bool = True
    """Whether it follows from numbers that are there, not from a name or a table of models."""
    is_of_absence: bool = False
    """Whether it follows from a flag that is not there: only a whole command line shows that."""


Check = Callable[[Settings], Refusal | None]

_RANKS: tuple[tuple[Release, tuple[int, ...]], ...] = (
    ((0, 4), (8, 16, 32, 64)),
    ((0, 5, 5), (8, 16, 32, 64, 128, 256)),
    ((0, 8), (8, 16, 32, 64, 128, 256, 320, 512)),
    ((0, 11, 1), (1, 8, 16, 32, 64, 128, 256, 320, 512)),
)
"""That --max-lora-rank may be, from a release on."""
_BLOCKS: tuple[tuple[Release, tuple[int, ...]], ...] = (
    ((0, 4), (8, 16, 32)),
    ((0, 5, 5), (8, 16, 32, 128, 256, 512, 1024, 2048)),
    ((0, 6), (8, 16, 32)),
    ((0, 6, 4), (8, 16, 32, 64, 128)),
    ((0, 8, 5), (1, 8, 16, 32, 64, 128)),
    ((0, 11, 1), (1, 8, 16, 32, 64, 128, 256)),
)
"""The same of --block-size, until 0.18 took any."""


def _offered(steps: tuple[tuple[Release, tuple[int, ...]], ...], release: Release) -> tuple[int, ...]:
    return [values for since, values in steps if since <= release][-1]


def _fewer_tokens_than_length(s: Settings) -> Refusal | None:
    """Without chunked prefill a prompt is one step. V1 had it on whatever was given until 0.11.1."""
    tokens, length = s.given("max-num-batched-tokens"), s.given("max-model-len")
    chunked = s.is_in_force("enable-chunked-prefill") or (0, 8) <= s.release < (0, 11, 1)
    by_itself = s.release >= (0, 5, 5) and not s.has("enable-chunked-prefill")
    if not tokens or not length or tokens >= length or chunked or (by_itself and length > _LONG):
        return None
    return Refusal(
        f"--max-num-batched-tokens {tokens:.0f} < --max-model-len {length:.0f} without chunked prefill",
        ("max-num-batched-tokens", "max-model-len", "enable-chunked-prefill"),
        f"--enable-chunked-prefill, or --max-num-batched-tokens {length:.0f}",
    )


_LONG = 32_768
"""V0 of 0.5.5 to 0.7 chunked prompts by itself above this length."""


def _fewer_tokens_than_usual_slots(s: Settings) -> Refusal | None:
    """From 0.10.1 on the default of slots yields to the tokens that are given."""
    tokens, slots = s.given("max-num-batched-tokens"), s.number("max-num-seqs")
    if not tokens or s.has("max-num-seqs") or tokens >= slots:
        return None
    return Refusal(
        f"--max-num-batched-tokens {tokens:.0f} is below --max-num-seqs, {slots:.0f} by default",
        ("max-num-batched-tokens",),
        f"--max-num-seqs {tokens:.0f} beside it, or --max-num-batched-tokens {slots:.0f} or more",
        is_of_absence=True,
    )


def _threshold_beyond_length(s: Settings) -> Refusal | None:
    threshold, length = s.given("long-prefill-token-threshold"), s.given("max-model-len")
    if not threshold or not length or threshold <= length:
        return None
    return Refusal(
        f"--long-prefill-token-threshold {threshold:.0f} is above --max-model-len {length:.0f}",
        ("long-prefill-token-threshold", "max-model-len"),
        f"--long-prefill-token-threshold at most {length:.0f}",
    )


def _more_active_than_slots(s: Settings) -> Refusal | None:
    active, slots = s.given("max-num-active-seqs"), s.number("max-num-seqs")
    if not active or not s.has("max-num-seqs") or active <= slots:
        return None
    return Refusal(
        f"--max-num-active-seqs {active:.0f} is above --max-num-seqs {slots:.0f}",
        ("max-num-active-seqs", "max-num-seqs"),
        f"--max-num-active-seqs at most {slots:.0f}",
    )


def _share_above_one(s: Settings) -> Refusal | None:
    share = s.given("gpu-memory-utilization")
    if share is None or 0 < share <= 1:
        return None
    return Refusal(
        f"--gpu-memory-utilization {share:g} is no share of the card: it lies between 0 and 1",
        ("gpu-memory-utilization",),
        f"--gpu-memory-utilization {share / 100:g}" if 1 < share <= 100 else "--gpu-memory-utilization 0.9",
    )


def _fewer_adapters_in_memory(s: Settings) -> Refusal | None:
    kept, used = s.given("max-cpu-loras"), s.number("max-loras")
    if not kept or kept >= used:
        return None
    return Refusal(
        f"--max-cpu-loras {kept:.0f} is below --max-loras {used:.0f}",
        ("max-cpu-loras", "max-loras"),
        f"--max-cpu-loras {used:.0f} or more, or leave it out",
    )


def _rank_not_offered(s: Settings) -> Refusal | None:
    rank = s.given("max-lora-rank")
    if rank is None:
        return None
    offered = _offered(_RANKS, s.release)
    if rank in offered:
        return None
    above = next((each for each in offered if each > rank), offered[-1])
    return Refusal(
        f"--max-lora-rank {rank:g} is none of {', '.join(map(str, offered))}",
        ("max-lora-rank",),
        f"--max-lora-rank {above}",
    )


def _adapter_above_rank(s: Settings) -> Refusal | None:
    """The rank of the adapter as somebody told it: of its adapter_config.json, the `r`."""
    told = s.e.number("workload:lora_rank", "workload:adapter_rank", "workload:lora_r", "hardware:lora_rank")
    most = s.number("max-lora-rank")
    if told is None or told <= most or not s.is_on("enable-lora"):
        return None
    fits = next((each for each in _offered(_RANKS, s.release) if each >= told), 512)
    return Refusal(
        f"An adapter of rank {told:.0f} does not fit --max-lora-rank {most:.0f}",
        ("workload:lora_rank", "max-lora-rank"),
        f"--max-lora-rank {fits}",
    )


def _lora_chunked(s: Settings) -> Refusal | None:
    if not s.is_on("enable-lora") or not s.is_on("enable-chunked-prefill"):
        return None
    return Refusal(
        "--enable-lora and --enable-chunked-prefill do not go together in this version",
        ("enable-lora", "enable-chunked-prefill"),
        "leave --enable-chunked-prefill out, or vLLM 0.6.5 or newer",
    )


def _block_not_offered(s: Settings) -> Refusal | None:
    """From 0.18 on any size is taken, and the backend says what it can do with it."""
    size = s.given("block-size")
    if size is None or size in _offered(_BLOCKS, s.release):
        return None
    return Refusal(
        f"--block-size {size:g} is no size that vLLM offers in this version",
        ("block-size",),
        "leave it out, or --block-size 16 or 32",
    )


_PAGES = {
    "FLASHMLA": 64.0, "CUTLASS_MLA": 128.0, "HPC_ATTN": 64.0,
}  # fmt: skip
"""Backends that know one size of block only."""


def _block_of_backend(s: Settings) -> Refusal | None:
    backend = s.text("attention-backend").upper() or s.e.text("env:VLLM_ATTENTION_BACKEND").upper()
    size, wanted = s.given("block-size"), _PAGES.get(backend)
    if size is None or wanted is None or size == wanted:
        return None
    return Refusal(
        f"{backend} works on blocks of {wanted:.0f} tokens, not {size:.0f}",
        ("block-size", "attention-backend"),
        f"--block-size {wanted:.0f}, or leave it out",
    )


def _prefixes_in_fp8(s: Settings) -> Refusal | None:
    if not s.is_on("enable-prefix-caching") or not s.text("kv-cache-dtype").startswith("fp8"):
        return None
    return Refusal(
        "Prefix caching and a KV cache in fp8 do not go together in this version",
        ("enable-prefix-caching", "kv-cache-dtype"),
        "leave one of them out, or vLLM 0.5.5 or newer",
    )


def _no_pipeline(s: Settings) -> Refusal | None:
    stages = s.given("pipeline-parallel-size")
    if not stages or stages <= 1:
        return None
    return Refusal(
        f"--pipeline-parallel-size {stages:.0f}: this version has no pipeline parallelism",
        ("pipeline-parallel-size",),
        "--tensor-parallel-size over all cards, or vLLM 0.5.1 or newer",
    )


def _more_ranks_than_cards(s: Settings) -> Refusal | None:
    """One node with multiprocessing; Ray and several nodes bring cards that are not counted here."""
    cards = s.e.number("hardware:gpu_count", "hardware:num_gpus", "hardware:gpus")
    tensor, stages = s.number("tensor-parallel-size"), s.number("pipeline-parallel-size")
    nodes = max(s.given("nnodes") or 1, s.e.number("hardware:nodes", "hardware:node_count") or 1)
    spread = s.text("distributed-executor-backend") == "ray" or nodes > 1
    if not cards or spread or tensor * stages <= cards:
        return None
    return Refusal(
        f"{tensor:.0f} x {stages:.0f} ranks are asked for on {cards:.0f} card{'s' if cards > 1 else ''}",
        ("tensor-parallel-size", "pipeline-parallel-size", "hardware:gpu_count"),
        f"--tensor-parallel-size x --pipeline-parallel-size at most {cards:.0f}, or several nodes with Ray",
        is_of_absence=True,
    )


def _experts_balanced_alone(s: Settings) -> Refusal | None:
    if not s.is_on("enable-eplb") or s.is_on("enable-expert-parallel"):
        return None
    return Refusal(
        "--enable-eplb without --enable-expert-parallel",
        ("enable-eplb",),
        "--enable-expert-parallel beside it",
        is_of_absence=True,
    )


def _local_above_all(s: Settings) -> Refusal | None:
    local, every = s.given("data-parallel-size-local"), s.number("data-parallel-size")
    if not local or local <= every:
        return None
    return Refusal(
        f"--data-parallel-size-local {local:.0f} is above --data-parallel-size {every:.0f} (of all nodes)",
        ("data-parallel-size-local", "data-parallel-size"),
        f"--data-parallel-size {local:.0f} or more",
    )


def _balancer_for_one(s: Settings) -> Refusal | None:
    if not s.is_on("data-parallel-external-lb") or s.number("data-parallel-size") > 1:
        return None
    return Refusal(
        "--data-parallel-external-lb with a --data-parallel-size of 1",
        ("data-parallel-external-lb", "data-parallel-size"),
        "--data-parallel-size 2 or more, or leave --data-parallel-external-lb out",
        is_of_absence=True,
    )


def _two_balancers(s: Settings) -> Refusal | None:
    if not s.is_on("data-parallel-external-lb") or not s.is_on("data-parallel-hybrid-lb"):
        return None
    return Refusal(
        "--data-parallel-external-lb and --data-parallel-hybrid-lb exclude each other",
        ("data-parallel-external-lb", "data-parallel-hybrid-lb"),
        "one of the two",
    )


def _context_not_dividing(s: Settings) -> Refusal | None:
    context, tensor = s.given("decode-context-parallel-size"), s.number("tensor-parallel-size")
    apart = (s.given("prefill-context-parallel-size") or 1) > 1
    if not context or apart or tensor % context == 0:
        return None
    return Refusal(
        f"--decode-context-parallel-size {context:.0f} does not divide --tensor-parallel-size {tensor:.0f}",
        ("decode-context-parallel-size", "tensor-parallel-size"),
        "one that divides it",
    )


def _nodes_over_ray(s: Settings) -> Refusal | None:
    nodes, backend = s.given("nnodes") or 1, s.text("distributed-executor-backend")
    if nodes <= 1 or backend != "ray":
        return None
    return Refusal(
        f"--nnodes {nodes:.0f} with --distributed-executor-backend ray: Ray counts its nodes itself",
        ("nnodes", "distributed-executor-backend"),
        "leave --nnodes out, or --distributed-executor-backend mp",
    )


def _nsight_without_ray(s: Settings) -> Refusal | None:
    ray = s.text("distributed-executor-backend") == "ray" or s.is_on("worker-use-ray")
    if not s.is_on("ray-workers-use-nsight") or ray:
        return None
    return Refusal(
        "--ray-workers-use-nsight without Ray",
        ("ray-workers-use-nsight",),
        "--distributed-executor-backend ray, or leave it out",
        is_of_absence=True,
    )


def _tools_without_parser(s: Settings) -> Refusal | None:
    if not s.is_on("enable-auto-tool-choice") or s.has("tool-call-parser"):
        return None
    return Refusal(
        "--enable-auto-tool-choice without --tool-call-parser",
        ("enable-auto-tool-choice",),
        "--tool-call-parser of the model's family (hermes, llama3_json, mistral, ...)",
        is_of_absence=True,
    )


def _reasoning_without_parser(s: Settings) -> Refusal | None:
    if not s.is_on("enable-reasoning") or s.has("reasoning-parser"):
        return None
    return Refusal(
        "--enable-reasoning without --reasoning-parser",
        ("enable-reasoning",),
        "--reasoning-parser of the model's family",
        is_of_absence=True,
    )


def _outputs_without_requests(s: Settings) -> Refusal | None:
    if not s.is_on("enable-log-outputs") or s.is_on("enable-log-requests"):
        return None
    return Refusal(
        "--enable-log-outputs without --enable-log-requests",
        ("enable-log-outputs",),
        "--enable-log-requests beside it",
        is_of_absence=True,
    )


def _connector_without_role(s: Settings) -> Refusal | None:
    name = "kv-transfer-config"
    if s.part(name, "kv_connector") is None or s.part(name, "kv_role") is not None:
        return None
    return Refusal(
        "--kv-transfer-config names a kv_connector and no kv_role",
        (name,),
        '"kv_role": "kv_both" in it, or kv_producer, kv_consumer',
        is_of_absence=True,
    )


CHECKS: tuple[tuple[Check, Release, Release | None], ...] = (
    (_fewer_tokens_than_length, (0, 4), None),
    (_fewer_tokens_than_usual_slots, (0, 4), (0, 10, 1)),
    (_threshold_beyond_length, (0, 7, 3), None),
    (_more_active_than_slots, (0, 31), None),
    (_share_above_one, (0, 4), None),
    (_fewer_adapters_in_memory, (0, 4), None),
    (_rank_not_offered, (0, 4), None),
    (_adapter_above_rank, (0, 4), None),
    (_lora_chunked, (0, 5, 1), (0, 6, 5)),
    (_block_not_offered, (0, 4), (0, 18)),
    (_block_of_backend, (0, 9), None),
    (_prefixes_in_fp8, (0, 4, 3), (0, 5, 5)),
    (_no_pipeline, (0, 4), (0, 5, 1)),
    (_more_ranks_than_cards, (0, 4), None),
    (_experts_balanced_alone, (0, 10), None),
    (_local_above_all, (0, 9), None),
    (_balancer_for_one, (0, 9, 2), None),
    (_two_balancers, (0, 27), None),
    (_context_not_dividing, (0, 26), None),
    (_nodes_over_ray, (0, 11, 1), None),
    (_nsight_without_ray, (0, 4), None),
    (_tools_without_parser, (0, 6, 3), None),
    (_reasoning_without_parser, (0, 7, 1), (0, 9)),
    (_outputs_without_requests, (0, 11), None),
    (_connector_without_role, (0, 6, 5), None),
)
"""With the first release that has it, and the first that has it no more."""


def found_by(
    checks: tuple[tuple[Check, Release, Release | None], ...], settings: Settings
) -> Iterator[Refusal]:
    for check, since, until in checks:
        holds = since <= settings.release and (until is None or settings.release < until)
        if holds and (refusal := check(settings)) is not None:
            yield refusal
