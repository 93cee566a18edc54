"""What cannot work, or works worse than it looks: a model, a format and a card held against each other.

    Deployment, max_model_len --obstacles--> [Obstacle]

Which format needs which card is vLLM 0.32's `get_min_capability` of each method; where it widens the weights
instead of multiplying in their format, they still take less memory and read faster, and compute as bf16.
"""

from dataclasses import dataclass

from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import Dtype, Gpu

Capability = tuple[int, int]
_BF16: Capability = (8, 0)
_FP8: Capability = (8, 9)
_NEEDED: dict[Dtype, Capability] = {
    Dtype.FP8: (7, 5),
    Dtype.INT8: (7, 5),
    Dtype.FP4: (8, 0),
    Dtype.NVFP4: (7, 5),
    Dtype.INT4: (7, 5),
}
"""To load such weights at all."""
_NATIVE: dict[Dtype, Capability] = {Dtype.FP8: _FP8, Dtype.NVFP4: (10, 0), Dtype.FP4: (10, 0)}
"""To multiply in the format."""
_GROUP = 128
"""Weights that share a scale in AWQ, GPTQ and DeepSeek's fp8: a rank's slice must be whole groups."""
_IN_ONE_SERVER = 8


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`is_fatal`: vLLM would refuse to start, or die."""

    is_fatal: bool
    what: str
    instead: str = ""


def obstacles(deployment: Deployment, max_model_len: int) -> tuple[Obstacle, ...]:
    """Beside memory, which `plan_of` looks at. The fatal ones first."""
    found = [
        *_of_the_card(deployment.gpu, deployment.weight_dtype, deployment.kv_cache_dtype),
        *_of_the_split(deployment),
        *_of_the_settings(deployment, max_model_len),
    ]
    return tuple(sorted(found, key=lambda each: not each.is_fatal))


def _of_the_card(gpu: Gpu, weights: Dtype, kv_cache: Dtype) -> list[Obstacle]:
    if gpu.capability is None:
        return _not_of_nvidia(gpu, weights)
    has = f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    found: list[Obstacle] = []
    if gpu.capability < _NEEDED.get(weights, (0, 0)):
        found.append(Obstacle(True, f"{has}; vLLM loads {weights} weights from {_of(_NEEDED[weights])} on"))
    elif gpu.capability < _NATIVE.get(weights, (0, 0)):
        found.append(
            Obstacle(
                False,
                f"{has}: {weights} weights save memory, but are multiplied as 16 bits; "
                f"{_of(_NATIVE[weights])} multiplies them as they are",
            )
        )
    if gpu.capability < _BF16 and weights is not Dtype.FP32:
        found.append(Obstacle(False, f"{has}: no bfloat16", "--dtype half"))
    if kv_cache is Dtype.FP8 and not reads_fp8(gpu):
        found.append(
            Obstacle(
                False,
                f"{has}: an fp8 KV cache needs a backend that converts it (FlashInfer); FlashAttention and "
                f"Triton refuse it below {_of(_FP8)}",
            )
        )
    if kv_cache is Dtype.NVFP4 and gpu.capability < (10, 0):
        found.append(
            Obstacle(True, f"{has}; a KV cache in nvfp4 needs {_of((10, 0))}", "--kv-cache-dtype fp8")
        )
    return found


def reads_fp8(gpu: Gpu) -> bool:
    """Whether every attention backend of vLLM for it takes a KV cache in fp8."""
    return gpu.capability is None or gpu.capability >= _FP8


def _not_of_nvidia(gpu: Gpu, weights: Dtype) -> list[Obstacle]:
    if weights is Dtype.NVFP4:
        return [Obstacle(True, f"{gpu.name} has no NVFP4", "--quantization mxfp4 or fp8")]
    return []


def _of(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _of_the_split(deployment: Deployment) -> list[Obstacle]:
    """Heads are checked by `Deployment` itself."""
    model, size = deployment.model, deployment.tensor_parallel_size
    found: list[Obstacle] = []
    heads = model.num_kv_heads
    if model.latent is None and (heads % size if heads >= size else size % heads):
        found.append(
            Obstacle(
                True, f"{heads} KV heads cannot be divided among tensor_parallel_size {size}, nor copied"
            )
        )
    elif model.latent is None and size > heads:
        found.append(
            Obstacle(
                False,
                f"{heads} KV heads among {size} ranks: each is kept {size // heads} times, so the KV cache "
                f"holds no more than with {heads}",
            )
        )
    inner = model.experts.intermediate_size if model.experts else model.intermediate_size
    if inner % size or (deployment.weight_dtype is Dtype.INT4 and (inner // size) % _GROUP):
        found.append(
            Obstacle(
                inner % size != 0,
                f"the MLP's {inner} is no multiple of {size} ranks"
                + (f" in groups of {_GROUP}; many kernels refuse that" if inner % size == 0 else ""),
            )
        )
    if size > _IN_ONE_SERVER:
        found.append(
            Obstacle(
                False,
                f"tensor_parallel_size {size} spans servers: twice a layer all wait for the network",
                f"--tensor-parallel-size {_IN_ONE_SERVER} --pipeline-parallel-size {size // _IN_ONE_SERVER}",
            )
        )
    return found


def _of_the_settings(deployment: Deployment, max_model_len: int) -> list[Obstacle]:
    found: list[Obstacle] = []
    if deployment.max_num_batched_tokens < deployment.max_num_seqs:
        found.append(
            Obstacle(
                True,
                f"max_num_batched_tokens {deployment.max_num_batched_tokens} is below max_num_seqs "
                f"{deployment.max_num_seqs}",
                f"--max-num-seqs {deployment.max_num_batched_tokens}",
            )
        )
    longest = deployment.model.max_model_len
    if max_model_len > longest:
        found.append(
            Obstacle(
                True,
                f"max_model_len {max_model_len:,} is beyond the model's {longest:,} tokens",
                f"--max-model-len {longest}, or rope scaling in --hf-overrides",
            )
        )
    return found
