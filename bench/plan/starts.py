"""Start-ups of vLLM that were logged: what was started, and what it said of its memory.

    case.json {version, flags, log, hardware, workload} | a server's log --> Start

The form of a case is that of the incident collection; `starts.json` beside this file has more in the same
form, each with its source.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.capacity.catalogue import find_model
from headrace.capacity.gpus import GIB, GPUS, Dtype, Gpu
from headrace.capacity.models import ModelShape

MORE = Path(__file__).with_name("starts.json")
_LOCAL_MODELS = {"smol-hf": "smollm2-135m"}
"""Folders of checkpoints that logs name, by what is in them."""
_FORMATS = {"-FP8": Dtype.FP8, "-AWQ": Dtype.INT4, "-NVFP4": Dtype.NVFP4, "-GPTQ-Int4": Dtype.INT4}
_KV_FORMATS = {"fp8": Dtype.FP8, "nvfp4": Dtype.NVFP4, "float32": Dtype.FP32}
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_SAID = {
    "available_gib": (
        rf"kv_cache_size={_NUMBER}GiB",
        rf"Available KV cache memory: {_NUMBER} GiB",
        rf"larger than the available KV cache memory \({_NUMBER} GiB",
        rf"reserved for KV Cache is {_NUMBER}GiB",
        rf"Current kv cache memory in use is {_NUMBER} GiB",
        rf"Explicitly set \({_NUMBER}/[\d.]+\) GiB for KV cache",
    ),
    "blocks": (rf"# (?:GPU|CUDA|cuda) blocks: {_NUMBER}",),
    "tokens": (rf"KV cache size: {_NUMBER} tokens",),
    "concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x",),
    "concurrency_tokens": (rf"Maximum concurrency for {_NUMBER} tokens per request",),
    "needed_gib": (rf"\({_NUMBER} GiB KV cache is needed",),
    "needed_tokens": (rf"max seq len \({_NUMBER}\), \(",),
    "storable_tokens": (rf"can be stored in KV cache \({_NUMBER}\)",),
    "longest_tokens": (rf"estimated maximum model length is {_NUMBER}",),
    "total_gib": (
        rf"total_gpu_memory[ =(]*{_NUMBER}GiB",
        rf"Free memory on device [^(]*\([\d.]+/{_NUMBER} GiB",
    ),
    "weights_gib": (
        rf"[Ll]oading (?:model )?weights took {_NUMBER} G",
        rf"Model loading took {_NUMBER} Gi?B",
        rf"Actual usage is {_NUMBER} GiB for weight",
    ),
    "activations_gib": (rf"{_NUMBER} GiB for peak activation", rf"activation peak memory takes {_NUMBER}GiB"),
}
_OF_INTEREST = {"blocks", "tokens", "concurrency", "storable_tokens", "needed_gib", "available_gib"}
_OF_V0 = re.compile(r"# (?:GPU|CUDA|cuda) blocks|Memory profiling results|Memory profiling takes")
_UNCHUNKED_UP_TO = 32_768
"""vLLM's first engine cut prompts into chunks only for longer contexts; else a step was as long as one."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start-up. Of what is not known or not said: None."""

    name: str
    source: str
    version: str | None
    """As "0.19", where it is one whose accounting is known."""
    model: ModelShape | None
    weight_dtype: Dtype
    kv_cache_dtype: Dtype
    gpu: Gpu | None
    flags: Mapping[str, object]
    said: Mapping[str, float]
    """Figures of the log, by the names of `_SAID`."""
    earlier: Mapping[str, float]
    """The same of another start that the report tells of."""
    of_v0: bool = False

    def flag(self, name: str) -> int | None:
        value = self.flags.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def max_model_len(self) -> int | None:
        said = self.said.get("concurrency_tokens")
        if said is not None:
            return int(said)
        return self.flag("max-model-len") or (self.model.max_model_len if self.model else None)

    @property
    def block_size(self) -> int:
        return self.flag("block-size") or 16

    @property
    def step_tokens(self) -> int | None:
        """`max_num_batched_tokens`, where it is said or follows; None: the card's default."""
        if (said := self.flag("max-num-batched-tokens")) is not None:
            return said
        length = self.max_model_len
        if self.of_v0 and length is not None:
            return max(2048, length) if length <= _UNCHUNKED_UP_TO else 2048
        return None


def read_cases(folder: Path) -> Iterator[Start]:
    """Of the incidents in a folder those that logged something of the KV cache's size."""
    for path in sorted(folder.glob("C*.json")):
        start = start_of(json.loads(path.read_text(encoding="utf-8")))
        if start.said.keys() & _OF_INTEREST:
            yield start


def read_more() -> Iterator[Start]:
    for case in json.loads(MORE.read_text(encoding="utf-8")):
        yield start_of(case)


def start_of(case: Mapping[str, object]) -> Start:
    hardware, workload = _part(case, "hardware"), _part(case, "workload")
    lines = case.get("log")
    log = [str(line) for line in lines] if isinstance(lines, list) else []
    flags = _part(case, "flags")
    model, weight_dtype = _model(str(workload.get("model", "")))
    said = said_in(log)
    return Start(
        str(case.get("id")),
        str(case.get("source")),
        _version(str(case.get("version", ""))),
        model,
        weight_dtype,
        _KV_FORMATS.get(str(flags.get("kv-cache-dtype")), Dtype.BF16),
        _gpu(hardware, said.get("total_gib")),
        flags,
        said,
        _numbers(_part(workload, "previous_start")),
        any(_OF_V0.search(line) for line in log),
    )


def read_server_log(path: Path) -> Start:
    """A whole log of a server, its own arguments among the lines."""
    text = path.read_text(encoding="utf-8", errors="replace")
    version = re.search(r"LLM engine \(v([\d.]+)", text)
    model = re.search(r"Initializing a V1 LLM engine .*?config: model='([^']+)'", text)
    float32 = "dtype=torch.float32" in text
    shape, weight_dtype = _model(model[1] if model else "")
    said = said_in(text.splitlines())
    block_size = 128 if "device_config=cpu" in text else 16  # vLLM's defaults
    return Start(
        path.name,
        "",
        _version(version[1] if version else ""),
        shape,
        Dtype.FP32 if float32 else weight_dtype,
        Dtype.FP32 if float32 else Dtype.BF16,
        None,
        {"block-size": block_size},
        said,
        {},
    )


def said_in(lines: list[str]) -> dict[str, float]:
    """The first place where each figure stands."""
    found: dict[str, float] = {}
    for name, patterns in _SAID.items():
        for pattern in patterns:
            match = next((m for line in lines if (m := re.search(pattern, line))), None)
            if match is not None:
                found[name] = float(match[1].replace(",", ""))
                break
    return found


def _model(name: str) -> tuple[ModelShape | None, Dtype]:
    """By its name in the catalogue or on a hub, what quantisers append to it taken off."""
    plain = _LOCAL_MODELS.get(name.rpartition("/")[2], name)
    for suffix, dtype in _FORMATS.items():
        if plain.endswith(suffix):
            return find_model(plain.removesuffix(suffix)), dtype
    shape = find_model(plain)
    return shape, shape.weight_dtype if shape else Dtype.BF16


def _gpu(hardware: Mapping[str, object], total_gib: float | None) -> Gpu | None:
    """Of the catalogue, with as much memory as the log says."""
    name = re.sub(r"[ _]", "-", str(hardware.get("gpu", "")).lower().removeprefix("nvidia "))
    gpu = GPUS.get({"a100-80gb": "a100-80", "a100": "a100-80"}.get(name, name))
    if gpu is None or total_gib is None:
        return gpu
    return replace(gpu, memory_bytes=int(total_gib * GIB))


def _version(said: str) -> str | None:
    match = re.match(r"(0\.\d+)", said)
    return match[1] if match else None


def _part(case: Mapping[str, object], name: str) -> dict[str, object]:
    part = case.get(name)
    return {str(key): value for key, value in part.items()} if isinstance(part, Mapping) else {}


def _numbers(part: Mapping[str, object]) -> dict[str, float]:
    return {k: float(v) for k, v in part.items() if isinstance(v, int | float) and not isinstance(v, bool)}
