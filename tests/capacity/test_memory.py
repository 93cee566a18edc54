"""What fits: weights, KV cache by rank, blocks."""

from dataclasses import replace

import pytest

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.gpus import GIB, GPUS, Dtype, geforce_tflops
from headrace.capacity.memory import kv_budget, kv_bytes_per_token, kv_cache_bytes, weights_bytes
from headrace.core.errors import BadInput


def on(model: str, gpu: str, tensor_parallel_size: int = 1, dtype: Dtype = Dtype.BF16) -> Deployment:
    return Deployment(model_named(model), GPUS[gpu], tensor_parallel_size, weight_dtype=dtype)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        ("llama-3.1-8b", 1, 2 * 32 * 8 * 128 * 2),
        ("llama-3.1-70b", 4, 2 * 80 * 2 * 128 * 2),
        ("llama-3.1-70b", 16, 2 * 80 * 1 * 128 * 2),  # 8 KV heads: beyond 8 ranks they are copied
        ("deepseek-v3", 1, 61 * (512 + 64) * 2),
        ("deepseek-v3", 8, 61 * (512 + 64) * 2),  # MLA's vector is whole on every rank
        ("gpt-oss-120b", 1, 18 * 2 * 8 * 64 * 2),  # one group of two
    ],
)
def test_a_token_takes_its_keys_and_values_on_each_rank(model: str, size: int, expected: int) -> None:
    assert kv_bytes_per_token(on(model, "mi300x", size)) == expected


def test_an_fp8_cache_holds_twice_as_many_tokens() -> None:
    half = replace(on("llama-3.1-8b", "l4"), kv_cache_dtype=Dtype.FP8)
    assert kv_budget(half).usable_tokens == pytest.approx(
        2 * kv_budget(on("llama-3.1-8b", "l4")).usable_tokens, rel=0.001
    )


def test_ranks_share_the_weights() -> None:
    whole = weights_bytes(on("llama-3.1-70b", "mi300x"))
    assert whole == pytest.approx(model_named("llama-3.1-70b").parameters * 2)
    assert weights_bytes(on("llama-3.1-70b", "mi300x", 4)) == pytest.approx(whole / 4)


def test_only_what_is_quantised_shrinks() -> None:
    published = weights_bytes(on("gpt-oss-120b", "h100", dtype=Dtype.FP4))
    assert published / GIB == pytest.approx(60.8, rel=0.03)  # the checkpoint has 60.8 GiB


def test_the_blocks_are_what_the_weights_leave() -> None:
    deployment = on("llama-3.1-8b", "h100")
    budget = kv_budget(deployment, block_size=16)
    assert budget.bytes_per_block == 16 * 131072
    assert budget.total_bytes <= kv_cache_bytes(deployment) < budget.total_bytes + budget.bytes_per_block
    assert kv_cache_bytes(deployment) < deployment.gpu.memory_bytes * 0.92 - weights_bytes(deployment)


def test_larger_steps_leave_less_for_the_cache() -> None:
    small = on("llama-3.1-8b", "l4")
    assert kv_cache_bytes(replace(small, max_num_batched_tokens=16384)) < kv_cache_bytes(small)


def test_what_does_not_fit_is_told_with_the_sum() -> None:
    with pytest.raises(BadInput, match=r"of the 72\.8 GiB .* weights take 131\.4") as caught:
        kv_cache_bytes(on("llama-3.1-70b", "h100"))
    assert "h100x2" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tensor_parallel_size": 3}, "must divide the 32 attention heads"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"gpu_memory_utilization": 1.5}, "a share"),
        ({"gpu_memory_utilization": float("nan")}, "a share"),
        ({"max_num_seqs": 0}, "at least 1"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(change: dict[str, float], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        replace(on("llama-3.1-8b", "h100"), **change)


def test_every_card_says_where_its_figures_come_from() -> None:
    for gpu in GPUS.values():
        assert gpu.specs
        assert gpu.evidence
        assert 0 < gpu.compute_efficiency <= 1
        assert 0 < gpu.bandwidth_efficiency <= 1


@pytest.mark.parametrize("name", ["3060", "rtx3060", "NVIDIA GeForce RTX 3060", "RTX 3060 12GB"])
def test_a_card_has_every_name_that_people_write(name: str) -> None:
    assert gpu_named(name).name == "rtx-3060"


def test_the_arithmetic_of_geforce_is_what_is_published() -> None:
    """The RTX 3080's 59.5 TFLOP/s with FP32 accumulation: NVIDIA's GA102 whitepaper; it is none of those that
    the rule was taken from."""
    assert geforce_tflops(68, 1.71) == pytest.approx(59.5, rel=0.002)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h10", "did you mean h100"),
        ("3070", "did you mean rtx-3060 or rtx-3090"),
        ("RTX 5090 Ti", "did you mean rtx-5090 or rtx-5080 or rtx-5060-ti?"),
        ("b100", "did you mean v100-32 or h100 or a100-80?"),
        ("mi250", "mi300x"),
        ("xyz", f"one of {', '.join(GPUS)}"),
    ],
)
def test_an_unknown_card_is_told_the_names_that_are_near_or_all(name: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        gpu_named(name)
    assert hint in caught.value.hint
