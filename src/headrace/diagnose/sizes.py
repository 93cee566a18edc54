"""How much weights weigh and how much a card holds, from names, to within a tenth.

    "Qwen2.5-72B-Instruct-AWQ" -> 72e9 parameters of 0.55 bytes
    "4x H100 80GB"             -> 79 GiB, 3350 GB/s

For verdicts that need no more than "far above" or "far below"; capacity/ does the exact arithmetic.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from headrace.capacity.catalogue import catalogue
from headrace.diagnose.evidence import Evidence

GIB = 2**30
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)\s?b(?![a-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(r"\ba(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
_OLLAMA = 0.6
"""Its models are Q4_K_M unless their names say otherwise."""
_SHIPPED = (
    (re.compile(r"gpt-oss|kimi-k2", re.IGNORECASE), 0.56),
    (re.compile(r"deepseek-(?:v3|r1|v4)|minimax-m[12]", re.IGNORECASE), 1.05),
)
"""Families whose own checkpoints are quantised, though their names do not say so."""
_BYTES = (
    (re.compile(r"fp4|nvfp4|mxfp4|int4|w4a|awq|gptq|4bit|4-bit|q4|iq4|bnb", re.IGNORECASE), 0.56),
    (re.compile(r"q5|q6", re.IGNORECASE), 0.75),
    (re.compile(r"fp8|int8|w8a|8bit|8-bit|q8", re.IGNORECASE), 1.05),
    (re.compile(r"fp32|float32|\bfloat\b", re.IGNORECASE), 4.0),
)


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory_gib: float
    gb_per_s: float
    tflops: float | None
    """Dense, 16 bit, by the data sheet."""


@cache
def _cards() -> Mapping[str, Card]:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/cards.toml").read_text("utf-8"))
    found = {
        name: Card(name, float(row[0]), float(row[1]), float(row[2]) if len(row) > 2 else None)
        for name, row in table["cards"].items()
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def card_of(text: str) -> Card | None:
    lower = text.lower().replace("-sxm", " sxm").replace("geforce ", "")
    return next(
        (c for name, c in _cards().items() if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![0-9])", lower)),
        None,
    )


@cache
def _capabilities() -> Mapping[str, tuple[int, int]]:
    table = tomllib.loads(files("headrace.diagnose").joinpath("data/cards.toml").read_text("utf-8"))
    found = {name: (row[0], row[1]) for name, row in table["capability"].items()}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def capability_of(e: Evidence) -> tuple[int, int] | None:
    """CUDA's number for what the card computes: as told, or by its name; None of others and of several."""
    told = re.fullmatch(
        r"(\d+)\.(\d+)", e.text("hardware:compute_capability") or e.text("hardware:capability")
    )
    if told:
        return int(told[1]), int(told[2])
    named = set(_named_in(hardware_text(e).lower().replace("geforce ", ""), _capabilities()))
    return named.pop() if len(named) == 1 else None


def cards_of(text: str) -> list[Card]:
    """Every different card named."""
    return list(_named_in(text.lower(), _cards()))


_Named = TypeVar("_Named")


def _named_in(lower: str, table: Mapping[str, _Named]) -> Iterator[_Named]:
    """What the names in a text stand for. The table begins with the longest, which holds shorter ones."""
    for name, value in table.items():
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![0-9])", lower):
            lower = lower.replace(name, " ")
            yield value


def model_of(e: Evidence) -> str:
    """The model's name, from wherever it stands."""
    for name in ("workload:model", "hardware:model"):
        if text := e.text(name):
            return text
    for flag in ("model", "model-path", "model-tag"):
        if flag in e.flags:
            return str(e.flags[flag].value)
    return ""


def parameters_of(name: str) -> float | None:
    """Of "8x7B" 47e9, of "72B" 72e9; the part of a mixture that is active for a token does not count."""
    found = _PARAMETERS.findall(_ACTIVE.sub(" ", name.replace("_", "-")))
    if not found:
        return None
    experts, size = max(found, key=lambda pair: float(pair[1]))
    return float(size) * 1e9 * (int(experts) * 0.84 if experts else 1)


def active_parameters_of(name: str) -> float | None:
    found = _ACTIVE.search(name)
    return float(found[1]) * 1e9 if found else parameters_of(name)


def bytes_per_weight(e: Evidence) -> float:
    if e.engine == "ollama" and not e.flags.get("quantization"):
        return _OLLAMA
    given = " ".join(str(e.flags[name].value) for name in ("quantization", "dtype") if name in e.flags)
    names = f"{model_of(e)} {given} {e.text('workload:quantization')} {e.text('workload:dtype')}"
    return next((size for pattern, size in (*_BYTES, *_SHIPPED) if pattern.search(names)), 2.0)


def weights_gib(e: Evidence) -> float | None:
    """Of all ranks together."""
    parameters = parameters_of(model_of(e))
    return parameters * bytes_per_weight(e) / GIB if parameters else None


def memory_gib(e: Evidence) -> float | None:
    """Of one card: as told, or by its name."""
    for name in ("gpu_total_gib", "gpu_mem_gib", "mem_gib", "gpu_memory_gib", "gpu_mem_gb", "gpu_memory_gb"):
        if (told := e.number(f"hardware:{name}")) is not None:
            return told
    if (mib := e.number("gpu:memory_total_mib")) is not None:
        return mib / 1024
    if (gib := e.number("gpu:memory_total_gib")) is not None:
        return gib
    card = card_of(hardware_text(e))
    return card.memory_gib if card else None


def hardware_text(e: Evidence) -> str:
    return " ".join(reading.text for reading in e.under("hardware:"))


_UNIFIED = re.compile(
    r"\b(?:gb10|dgx spark|jetson|orin|thor|strix halo|ai max|unified memory|apple|m[1-5] (?:max|ultra|pro))\b"
)


def is_unified(e: Evidence) -> bool:
    """Whether card and host share one memory."""
    if any(r.last for r in e.under("hardware:unified_memory")):
        return True
    cards = " ".join(e.text(f"hardware:{name}") for name in ("gpu", "accelerator", "device")).lower()
    return _UNIFIED.search(cards or f"{hardware_text(e)} {e.told()}".lower()) is not None


def tensor_parallel(e: Evidence) -> int:
    """Cards that share each layer; 1 where nothing says more."""
    return max(1, int(e.flag("tensor-parallel-size") or 1))


def ranks_of(e: Evidence) -> int:
    """Cards that share the weights: each layer, and the layers."""
    return tensor_parallel(e) * int(e.flag("pipeline-parallel-size") or 1)


_OUTSIDE_GIB = 2.0
"""Of a card: what start-up keeps for activations, contexts and graphs, within a factor of two."""


def kv_tokens_of_cards(e: Evidence) -> float | None:
    """Tokens of the KV pool by arithmetic: what the budget leaves beside the weights, over the bytes that
    a token keeps in a model of the catalogue. To within a fifth.
    """
    name = re.sub(r"[_ ]", "-", model_of(e).lower())
    known = [each for each in catalogue() if each in name]
    weights, card = weights_gib(e), memory_gib(e)
    if not known or weights is None or card is None or e.engine not in {"vllm", "sglang"}:
        return None
    shape = catalogue()[max(known, key=len)].shape
    numbers = shape.latent.cached_numbers if shape.latent else 2 * shape.num_kv_heads * shape.head_size
    given = e.flags.get("kv-cache-dtype")
    each = shape.num_full_layers * numbers * (1 if given and "8" in str(given.value) else 2)
    cards = ranks_of(e)
    budget = (e.flag("gpu-memory-utilization") or 0.9) * card - _OUTSIDE_GIB
    return max(0.0, budget * cards - weights) * GIB / each


def card_count(e: Evidence) -> int:
    told = e.number("hardware:gpu_count", "hardware:count", "hardware:gpus")
    return max(1, int(told or tensor_parallel(e)))
