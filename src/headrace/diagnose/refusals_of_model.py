"""Settings that vLLM refuses for this model or this card, by version: arithmetic on shapes and on names."""

import re

from headrace.capacity.catalogue import catalogue, find_model
from headrace.capacity.gpus import Dtype
from headrace.capacity.models import ModelShape
from headrace.diagnose.flag_history import Release
from headrace.diagnose.refusals import Check, Refusal
from headrace.diagnose.settings_of import Settings
from headrace.diagnose.sizes import capability_of, model_of

Capability = tuple[int, int]

_NEEDED: tuple[tuple[str, Capability, Release, Release | None], ...] = (
    ("fp8", (8, 9), (0, 4, 2), (0, 5, 1)),
    ("fp8", (8, 0), (0, 5, 1), (0, 14)),
    ("fp8", (7, 5), (0, 14), None),
    ("awq", (7, 5), (0, 4), None),
    ("gptq", (6, 0), (0, 4), None),
    ("gptq_marlin", (8, 0), (0, 4, 2), (0, 14)),
    ("awq_marlin", (8, 0), (0, 5, 3), (0, 14)),
    ("marlin", (8, 0), (0, 4), (0, 10, 2)),
    ("bitsandbytes", (7, 0), (0, 5), (0, 28)),
    ("fbgemm_fp8", (8, 0), (0, 5, 3), None),
    ("experts_int8", (8, 0), (0, 5, 5), None),
    ("mxfp4", (8, 0), (0, 10, 1), None),
)
"""`get_min_capability` of each method, from a release to before another."""
_OTHER_KINDS = {
    "awq": {"gptq", "gptq_marlin", "fp8", "bitsandbytes", "gguf", "squeezellm", "mxfp4"},
    "gptq": {"awq", "awq_marlin", "fp8", "bitsandbytes", "gguf", "squeezellm", "mxfp4"},
    "fp8": {"awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes", "gguf", "mxfp4"},
}
"""What a checkpoint whose name says its format is surely not."""
_OF_CHECKPOINTS = {"awq", "awq_marlin", "gptq", "gptq_marlin", "squeezellm", "marlin", "gguf"}
"""Methods that cannot make weights themselves: the checkpoint must have them."""


def _shape(s: Settings) -> ModelShape | None:
    """By exact name, else by the longest name of the catalogue that stands in it as a whole word."""
    name = model_of(s.e)
    if (found := find_model(name)) is not None:
        return found
    wanted = re.sub(r"[_ ]", "-", name.lower()).rpartition("/")[2]
    known = [each for each in catalogue() if re.match(rf"{re.escape(each)}(?![\w.])", wanted)]
    return catalogue()[max(known, key=len)].shape if known else None


def _heads_not_divided(s: Settings) -> Refusal | None:
    size, shape = int(s.number("tensor-parallel-size")), _shape(s)
    if shape is None or size < 2:
        return None
    heads, kept = shape.num_heads, shape.num_kv_heads
    uneven = shape.latent is None and (kept % size if kept >= size else size % kept)
    if heads % size == 0 and not uneven:
        return None
    fits = [each for each in (2, 4, 8, 16) if heads % each == 0 and each < size]
    what = f"{heads} attention heads" if heads % size else f"{kept} KV heads"
    return Refusal(
        f"{what} of {shape.name} cannot be divided among --tensor-parallel-size {size}",
        ("tensor-parallel-size",),
        f"--tensor-parallel-size {fits[-1] if fits else 1}",
        is_certain=False,
    )


def _longer_than_model(s: Settings) -> Refusal | None:
    """Of a model whose config.json the catalogue has; overrides may stretch it."""
    length, shape = s.given("max-model-len"), find_model(model_of(s.e))
    stretched = any(s.has(name) for name in ("hf-overrides", "rope-scaling", "rope-theta", "hf-config-path"))
    allowed = s.e.text("env:VLLM_ALLOW_LONG_MAX_MODEL_LEN") or s.has("VLLM-ALLOW-LONG-MAX-MODEL-LEN")
    if not length or shape is None or length <= shape.max_model_len or stretched or allowed:
        return None
    return Refusal(
        f"--max-model-len {length:.0f} is beyond the {shape.max_model_len} tokens of {model_of(s.e)}",
        ("max-model-len",),
        f"--max-model-len {shape.max_model_len}, or rope scaling through --hf-overrides",
        is_certain=False,
    )


def _prefixes_with_window(s: Settings) -> Refusal | None:
    shape = _shape(s)
    windowed = shape is not None and shape.window is not None and shape.num_window_layers == shape.num_layers
    if (
        shape is None
        or not windowed
        or not s.is_on("enable-prefix-caching")
        or s.is_on("disable-sliding-window")
    ):
        return None
    return Refusal(
        f"{shape.name} has a sliding window: V0 has no prefix caching for it",
        ("enable-prefix-caching",),
        "--disable-sliding-window beside it, or leave --enable-prefix-caching out",
        is_certain=False,
    )


def _bf16_on_old_card(s: Settings) -> Refusal | None:
    card = capability_of(s.e)
    if card is None or card >= (8, 0) or s.text("dtype") != "bfloat16":
        return None
    return Refusal(
        f"--dtype bfloat16 on a card of compute capability {_dotted(card)}: it needs 8.0",
        ("dtype", "hardware:gpu"),
        "--dtype half",
    )


def _method_needs_card(s: Settings) -> Refusal | None:
    card, method = capability_of(s.e), s.text("quantization")
    needed = next(
        (
            least
            for name, least, since, until in _NEEDED
            if name == method and since <= s.release and (until is None or s.release < until)
        ),
        None,
    )
    if card is None or needed is None or card >= needed:
        return None
    return Refusal(
        f"--quantization {method} needs compute capability {_dotted(needed)}; this card has {_dotted(card)}",
        ("quantization", "hardware:gpu"),
        "a checkpoint in another format (GPTQ runs from 6.0 on, AWQ from 7.5), or 16 bits",
    )


def _half_only(s: Settings) -> Refusal | None:
    """The plain kernels of these two compute in fp16; those of Marlin take both."""
    method = s.text("quantization")
    until = {"awq": (0, 24), "gptq": (0, 22)}.get(method, (0,))
    if s.release >= until or s.text("dtype") != "bfloat16":
        return None
    return Refusal(
        f"--quantization {method} computes in float16 only, not in bfloat16",
        ("quantization", "dtype"),
        f"--dtype half, or leave --quantization out, so that {method}_marlin is chosen",
    )


def _another_checkpoint(s: Settings) -> Refusal | None:
    method, name = s.text("quantization"), model_of(s.e)
    kind = next((each for each in _OTHER_KINDS if re.search(rf"(?<![a-z]){each}(?![a-z])", name.lower())), "")
    if method not in _OTHER_KINDS.get(kind, set()):
        return None
    return Refusal(
        f"--quantization {method} for a checkpoint that its name calls {kind.upper()}: {name}",
        ("quantization",),
        "leave --quantization out: the checkpoint says it",
        is_certain=False,
    )


def _plain_checkpoint(s: Settings) -> Refusal | None:
    method, shape = s.text("quantization"), find_model(model_of(s.e))
    if method not in _OF_CHECKPOINTS or shape is None or shape.weight_dtype is not Dtype.BF16:
        return None
    return Refusal(
        f"--quantization {method} for {model_of(s.e)}, whose weights are published in 16 bits",
        ("quantization",),
        f"a checkpoint made with {method.partition('_')[0].upper()}, or --quantization fp8, made at start",
        is_certain=False,
    )


def _cache_of_newer_cards(s: Settings) -> Refusal | None:
    card = capability_of(s.e)
    if card is None or card >= (10, 0) or s.text("kv-cache-dtype") != "nvfp4":
        return None
    return Refusal(
        f"--kv-cache-dtype nvfp4 needs compute capability 10.0; this card has {_dotted(card)}",
        ("kv-cache-dtype", "hardware:gpu"),
        "--kv-cache-dtype fp8",
    )


def _flash_attention_too_new(s: Settings) -> Refusal | None:
    """FlashAttention needs 8.0, and for a KV cache in fp8 the kernels of 9.0 or 10.x."""
    card, backend = capability_of(s.e), s.text("attention-backend").upper()
    fp8 = s.text("kv-cache-dtype").startswith("fp8")
    least = (9, 0) if fp8 else (8, 0)
    if card is None or backend != "FLASH_ATTN" or card >= least:
        return None
    return Refusal(
        "--attention-backend FLASH_ATTN"
        + (" with a KV cache in fp8" if fp8 else "")
        + f" needs compute capability {_dotted(least)}; this card has {_dotted(card)}",
        ("attention-backend", "kv-cache-dtype", "hardware:gpu"),
        "leave --attention-backend out, or " + ("FLASHINFER" if fp8 else "TRITON_ATTN"),
    )


def _dense_behind_balancer(s: Settings) -> Refusal | None:
    shape = _shape(s)
    outside = s.is_on("data-parallel-external-lb") or s.has("data-parallel-rank")
    if shape is None or shape.experts is not None or not outside or s.number("data-parallel-size") <= 1:
        return None
    return Refusal(
        f"{shape.name} has no experts: its replicas need no --data-parallel-external-lb, and vLLM refuses it",
        ("data-parallel-external-lb", "data-parallel-rank", "data-parallel-size"),
        "independent servers without --data-parallel flags, behind the balancer",
        is_certain=False,
    )


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


CHECKS: tuple[tuple[Check, Release, Release | None], ...] = (
    (_heads_not_divided, (0, 4), None),
    (_longer_than_model, (0, 4), None),
    (_prefixes_with_window, (0, 4, 3), (0, 8)),
    (_bf16_on_old_card, (0, 4), None),
    (_method_needs_card, (0, 4), None),
    (_half_only, (0, 4), None),
    (_another_checkpoint, (0, 4), None),
    (_plain_checkpoint, (0, 4), None),
    (_cache_of_newer_cards, (0, 20), None),
    (_flash_attention_too_new, (0, 13), None),
    (_dense_behind_balancer, (0, 21), None),
)
