"""Cost models by name or from a file, whichever kind they are.

    llama-3.1-8b/h100        first principles: MODEL[@WEIGHTS]/GPU[xN], from the catalogues of `capacity`
    llama-3.1-70b@fp8/h100x4
    measured.json            what `save` wrote: fitted, or first principles with calibrated multipliers

The files are small and for people too: what, where from, how far off, and a number a line.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from math import isfinite
from pathlib import Path
from typing import TypeAlias

import click

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.gpus import GIB, Dtype, Gpu
from headrace.capacity.roofline import Multipliers, Roofline
from headrace.core.cost import FrontEnd, Machine, Residual
from headrace.core.errors import BadInput
from headrace.core.whole_file import replace_file
from headrace.executor.cost import FittedCost, refuse_unknown_features

FORMAT, VERSION = "headrace cost model", 1
_MOST_BYTES = 1 << 20
_NAME = re.compile(r"(?P<model>[^@/]+)(@(?P<dtype>[^/]+))?/(?P<gpu>.+?)(x(?P<size>\d{1,3}))?")
_SERVERS_OWN = ("block_size", "max_num_batched_tokens", "max_num_seqs")
"""Of a machine; files of before have not got them."""
_DEPLOYMENT = (
    *("model", "gpu", "tensor_parallel_size", "weight_dtype", "kv_cache_dtype", "gpu_memory_utilization"),
    *("max_num_batched_tokens", "max_num_seqs", "enforce_eager", "async_scheduling"),
)
"""What of it a file keeps: all that the time of a step depends on."""
_EXAMPLE = "a file, or a name like llama-3.1-8b/h100 or llama-3.1-70b@fp8/h100x4"

Json: TypeAlias = Mapping[str, object]


LoadedCost: TypeAlias = FittedCost | Roofline


class CostType(click.types.StringParamType):
    """A cost's name or file, left as text: a sweep reads it in other processes."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        del param, ctx  # one sentence, whoever asks
        return f"{_EXAMPLE[0].upper()}{_EXAMPLE[1:]}"


def load_cost(name_or_path: str, model: str | None = None) -> LoadedCost:
    """Raises `BadInput` for an unknown name, a file that is not whole, or a cost of another than `model`."""
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_file():
        cost = _read(path)
    else:
        cost = Roofline(deployment_named(name_or_path))
    if model is not None and cost.machine is not None and cost.machine.model != model:
        raise BadInput(f"{name_or_path} is the cost of {cost.machine.model}, not of {model}")
    return cost


def deployment_named(name: str) -> Deployment:
    """MODEL[@WEIGHTS]/GPU[xN], with vLLM's defaults for such a device."""
    found = _NAME.fullmatch(name.lower())
    if found is None:
        raise BadInput(f"{name!r} is no cost model", _EXAMPLE)
    model, gpu = model_named(found["model"]), gpu_named(found["gpu"])
    try:
        dtype = Dtype(found["dtype"]) if found["dtype"] else model.weight_dtype
    except ValueError as error:
        raise BadInput(
            f"no weights of the format {found['dtype']!r}", f"one of {', '.join(Dtype)}"
        ) from error
    tokens, seqs = default_limits(gpu)
    return Deployment(
        model,
        gpu,
        tensor_parallel_size=int(found["size"] or 1),
        weight_dtype=dtype,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
    )


def default_limits(gpu: Gpu) -> tuple[int, int]:
    """What vLLM 0.32 serves with on this device: `max_num_batched_tokens` and `max_num_seqs`."""
    if gpu.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * GIB and not gpu.name.startswith("a100"):
        return 8192, 1024
    return 2048, 256


def save(cost: LoadedCost, path: Path) -> None:
    """Write what `load_cost` reads, whole or not at all."""
    body: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if isinstance(cost, FittedCost):
        machine = None if cost.machine is None else asdict(cost.machine)
        front_end = None if cost.front_end is None else asdict(cost.front_end)
        body |= {"kind": "fitted", "machine": machine, "front_end": front_end, "ns": dict(cost.ns)}
    else:
        deployment = cost.deployment
        values = {name: getattr(deployment, name) for name in _DEPLOYMENT}
        gpu = deployment.gpu
        values |= {"model": deployment.model.name, "gpu": gpu.name}
        # Written down, since multipliers are of these and a later catalogue may know better ones.
        efficiencies = {"compute": gpu.compute_efficiency, "bandwidth": gpu.bandwidth_efficiency}
        body |= {"kind": "first principles", "deployment": values, "efficiencies": efficiencies}
        body["multipliers"] = asdict(cost.multipliers)
    residual = None if cost.residual is None else asdict(cost.residual)
    body |= {"residual": residual, "provenance": dict(cost.provenance)}
    replace_file(path, [json.dumps(body, indent=2, allow_nan=False).encode(), b"\n"])


def _read(path: Path) -> LoadedCost:
    body = _decode(path)
    try:
        return _of_kind(body)
    except BadInput as error:
        raise BadInput(f"{path}: {error}", error.hint) from error


def _of_kind(body: Json) -> LoadedCost:
    if body.get("format") != FORMAT or body.get("version") != VERSION:
        raise BadInput(f"not a cost model of version {VERSION}", _EXAMPLE)
    if body.get("kind") == "fitted":
        return _fitted(body)
    if body.get("kind") == "first principles":
        return _first_principles(body)
    raise BadInput(f"kind is {body.get('kind')!r}; known are fitted and first principles")


def _decode(path: Path) -> Json:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        body: object = json.loads(text) if len(text) <= _MOST_BYTES else None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", _EXAMPLE) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON; it may be cut off: {error}", "calibrate again") from error
    return _mapping(body, str(path))


def _fitted(body: Json) -> FittedCost:
    ns = _numbers(_mapping(body.get("ns"), "ns"), "ns")
    refuse_unknown_features(list(ns))
    if not sum(ns.values()) > 0:
        raise BadInput("every rate is 0, so that a step would take no time")
    residual = _residual(body)
    if residual is None:
        raise BadInput("a fitted model without the residual of its fit")
    machine = body.get("machine")
    return FittedCost(
        ns,
        residual,
        _provenance(body),
        None if machine is None else _machine(_mapping(machine, "machine")),
        _front_end(body),
    )


def _first_principles(body: Json) -> Roofline:
    multipliers = _numbers(_mapping(body.get("multipliers"), "multipliers"), "multipliers")
    if set(multipliers) != set(Multipliers.names()):
        raise BadInput(f"multipliers are {', '.join(multipliers)}; expected {', '.join(Multipliers.names())}")
    values = _mapping(body.get("deployment"), "deployment")
    efficiencies = _numbers(_mapping(body.get("efficiencies"), "efficiencies"), "efficiencies")
    deployment = _deployment(values, efficiencies)
    return Roofline(deployment, Multipliers(**multipliers), _residual(body), _provenance(body))


def _deployment(values: Json, efficiencies: Mapping[str, float]) -> Deployment:
    if set(values) != set(_DEPLOYMENT):
        raise BadInput(f"deployment has {', '.join(values)}; expected {', '.join(sorted(_DEPLOYMENT))}")
    try:
        return Deployment(
            model_named(str(values["model"])),
            _with(gpu_named(str(values["gpu"])), efficiencies),
            tensor_parallel_size=_whole(values, "tensor_parallel_size"),
            weight_dtype=Dtype(str(values["weight_dtype"])),
            kv_cache_dtype=Dtype(str(values["kv_cache_dtype"])),
            gpu_memory_utilization=_number(values, "gpu_memory_utilization"),
            max_num_batched_tokens=_whole(values, "max_num_batched_tokens"),
            max_num_seqs=_whole(values, "max_num_seqs"),
            enforce_eager=values["enforce_eager"] is True,
            async_scheduling=values["async_scheduling"] is True,
        )
    except ValueError as error:
        raise BadInput(f"a deployment with {error}", f"formats are {', '.join(Dtype)}") from error


def _with(gpu: Gpu, efficiencies: Mapping[str, float]) -> Gpu:
    compute, bandwidth = efficiencies.get("compute", 0.0), efficiencies.get("bandwidth", 0.0)
    if not (0 < compute <= 1 and 0 < bandwidth <= 1):
        raise BadInput(f"efficiencies are {dict(efficiencies)}; compute and bandwidth must lie in (0, 1]")
    return replace(gpu, compute_efficiency=compute, bandwidth_efficiency=bandwidth)


def _machine(values: Json) -> Machine:
    return Machine(
        name=str(values.get("name")),
        model=str(values.get("model")),
        max_model_len=_whole(values, "max_model_len"),
        kv_cache_bytes=_whole(values, "kv_cache_bytes"),
        kv_bytes_per_token=_number(values, "kv_bytes_per_token"),
        async_scheduling=values.get("async_scheduling") is True,
        **{name: _whole(values, name) for name in _SERVERS_OWN if name in values},
    )


def _front_end(body: Json) -> FrontEnd | None:
    if body.get("front_end") is None:
        return None
    values = _mapping(body.get("front_end"), "front_end")
    fixed, by_token, answer = (_number(values, each.name, "front_end") for each in fields(FrontEnd))
    return FrontEnd(int(fixed), by_token, int(answer))


def _residual(body: Json) -> Residual | None:
    if body.get("residual") is None:
        return None
    values = _numbers(_mapping(body.get("residual"), "residual"), "residual")
    try:
        return Residual(int(values["observations"]), values["median"], values["p95"])
    except KeyError as error:
        raise BadInput(f"residual has no {error}") from error


def _provenance(body: Json) -> dict[str, str]:
    return {key: str(value) for key, value in _mapping(body.get("provenance"), "provenance").items()}


def _mapping(value: object, what: str) -> Json:
    if not isinstance(value, Mapping):
        raise BadInput(f"{what} is not an object")
    return {str(key): entry for key, entry in value.items()}


def _numbers(values: Json, what: str) -> dict[str, float]:
    return {name: _number(values, name, what) for name in values}


def _number(values: Json, name: str, what: str = "") -> float:
    """NaN, which JSON has no word for but Python reads, is no number; nor is a negative one a duration."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise BadInput(f"{what or name}: {name} is {value!r}; it must be a number, not negative")
    return float(value)


def _whole(values: Json, name: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is {value!r}; it must be a whole number above 0")
    return value
