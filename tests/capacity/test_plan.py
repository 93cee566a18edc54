"""What a plan promises: its parts add up, logged start-ups come out, and obstacles are named."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capacity.accounting import accounting_of
from headrace.capacity.catalogue import catalogue, model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.gpus import GIB, GPUS, Dtype
from headrace.capacity.obstacles import obstacles
from headrace.capacity.plan import Asked, plan_of
from headrace.capacity.starting import starting_points
from headrace.core.errors import BadInput


def on(model: str, gpu: str, tensor_parallel_size: int = 1, **settings: object) -> Deployment:
    deployment = Deployment(model_named(model), gpu_named(gpu), tensor_parallel_size)
    return replace(deployment, **settings)


def test_a_logged_start_on_an_a100_comes_out() -> None:
    """Llama 3.1 8B, vLLM 0.31, no flags: 56.21 GiB of KV cache, 460,496 tokens, 3.51x (bench/plan)."""
    found = plan_of(on("llama-3.1-8b", "a100"), Asked(131_072))
    assert found.kv_cache_bytes / GIB == pytest.approx(56.21, rel=0.02)
    assert found.tokens == pytest.approx(460_496, rel=0.02)
    assert found.max_concurrency == pytest.approx(3.51, rel=0.02)
    assert found.fits


def test_activations_are_what_was_logged_for_a_step_of_29_000_tokens() -> None:
    """17.98 GiB of peak over 14.99 of weights (github.com/vllm-project/vllm/issues/10517)."""
    found = plan_of(on("llama-3.1-8b", "rtx-3090", max_num_batched_tokens=29_000), Asked(29_000))
    assert found.memory.activations / GIB == pytest.approx(17.98 - 14.99, rel=0.02)


@given(
    st.sampled_from(sorted(catalogue())),
    st.sampled_from(sorted(GPUS)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([Dtype.BF16, Dtype.FP8, Dtype.INT4, Dtype.FP32]),
    st.sampled_from(["0.18", "0.21", "0.26", "0.32"]),
    st.integers(1, 300_000),
)
def test_whatever_the_deployment_its_parts_add_up(
    model: str, gpu: str, size: int, dtype: Dtype, version: str, max_model_len: int
) -> None:
    if model_named(model).num_heads % size:
        return
    found = plan_of(on(model, gpu, size, weight_dtype=dtype, vllm_version=version), Asked(max_model_len))
    use = found.memory
    assert use.requested == use.taken + use.kv_cache
    assert use.requested <= use.total
    assert found.num_blocks * found.layout.bytes_per_block <= max(0, found.kv_cache_bytes)
    if found.has_room:
        assert found.max_concurrency >= 1
    assert found.longest <= model_named(model).max_model_len
    if found.longest:
        at_its_longest = plan_of(found.deployment, replace(found.asked, max_model_len=found.longest))
        assert at_its_longest.has_room
    fewer, more = found.kv_cache_between
    assert fewer <= max(0, found.kv_cache_bytes) <= more


def test_ranks_and_stages_share_the_weights() -> None:
    whole = plan_of(on("llama-3.1-70b", "h100"), Asked(8192)).memory.weights
    halves = plan_of(on("llama-3.1-70b", "h100", 2), Asked(8192)).memory.weights
    stages = plan_of(on("llama-3.1-70b", "h100", pipeline_parallel_size=2), Asked(8192)).memory.weights
    assert halves == pytest.approx(whole / 2, rel=0.001)
    assert stages == pytest.approx(whole / 2, rel=0.001)


def test_stages_hold_layers_as_vllm_hands_them_out() -> None:
    deployment = on("deepseek-v3", "h200", pipeline_parallel_size=4)
    assert deployment.stage_layers == (15, 15, 16, 15)
    assert on("deepseek-v3", "h200", pipeline_parallel_size=3).stage_layers == (20, 21, 20)


def test_expert_parallelism_divides_experts_among_replicas() -> None:
    one = on("deepseek-v3", "h200", 8, weight_dtype=Dtype.FP8)
    two = replace(one, data_parallel_size=2, enable_expert_parallel=True)
    assert plan_of(two, Asked(8192)).memory.weights < 0.6 * plan_of(one, Asked(8192)).memory.weights


def test_a_given_kv_cache_is_taken_as_given() -> None:
    found = plan_of(on("llama-3.1-8b", "h100"), Asked(4096, kv_cache_memory_bytes=2 * GIB))
    assert (found.kv_cache_bytes, found.num_blocks) == (2 * GIB, 1024)
    assert found.kv_cache_between == (2 * GIB, 2 * GIB)


def test_graphs_come_off_the_kv_cache_since_0_21() -> None:
    before, since = (
        plan_of(on("llama-3.1-8b", "h100", vllm_version=version), Asked(4096)) for version in ("0.20", "0.21")
    )
    assert before.kv_cache_bytes - since.kv_cache_bytes == since.memory.cuda_graphs > 0
    assert plan_of(on("llama-3.1-8b", "h100", enforce_eager=True), Asked(4096)).memory.cuda_graphs == 0


@pytest.mark.parametrize(
    ("model", "gpu", "size", "settings", "fatal", "said"),
    [
        ("llama-3.1-8b", "a100", 1, {"weight_dtype": Dtype.FP8}, False, "multiplied as 16 bits"),
        ("llama-3.1-8b", "t4", 1, {}, False, "no bfloat16"),
        ("llama-3.1-8b", "v100", 1, {"weight_dtype": Dtype.INT4}, True, "from 7.5 on"),
        ("gpt-oss-20b", "t4", 1, {"weight_dtype": Dtype.FP4}, True, "from 8.0 on"),
        ("llama-3.1-8b", "mi300x", 1, {"weight_dtype": Dtype.NVFP4}, True, "no NVFP4"),
        ("llama-3.1-8b", "a100", 1, {"kv_cache_dtype": Dtype.FP8}, False, "FlashInfer"),
        ("llama-3.1-8b", "h100", 1, {"kv_cache_dtype": Dtype.NVFP4}, True, "needs 10.0"),
        ("qwen3-30b-a3b", "h100", 8, {}, False, "each is kept 2 times"),
        ("phi-4", "h100", 4, {}, True, "10 KV heads"),
        ("llama-3.1-70b", "h100", 16, {}, False, "spans servers"),
        ("qwen2.5-14b", "h100", 8, {"weight_dtype": Dtype.INT4}, False, "groups of 128"),
        ("llama-3.1-8b", "h100", 1, {"max_num_batched_tokens": 64}, True, "below max_num_seqs"),
    ],
)
def test_what_stands_in_the_way_is_named(
    model: str, gpu: str, size: int, settings: dict[str, object], fatal: bool, said: str
) -> None:
    found = obstacles(on(model, gpu, size, **settings), 4096)
    assert [each.is_fatal for each in found if said in each.what] == [fatal]


def test_a_length_beyond_the_models_is_refused() -> None:
    assert not plan_of(on("llama-3-8b", "h100"), Asked(9000)).fits


def test_nothing_stands_in_the_way_of_a_usual_deployment() -> None:
    assert obstacles(on("llama-3.1-8b", "h100", weight_dtype=Dtype.FP8), 131_072) == ()


def test_heads_that_cannot_be_divided_are_told_the_sizes_that_can() -> None:
    with pytest.raises(BadInput) as caught:
        on("qwen2.5-7b", "h100", 8)
    assert caught.value.hint == "one of 1, 2, 4"


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'0\.7'"):
        accounting_of("0.7")


@pytest.mark.parametrize("gpu", ["l4", "h100", "b200"])
def test_starting_points_are_settings_under_which_it_still_fits(gpu: str) -> None:
    found = plan_of(on("llama-3.1-8b", gpu), Asked(8192))
    for point in starting_points(found):
        chosen = {choice.name: choice.value for choice in point.choices}
        assert all(choice.why for choice in point.choices)
        deployment = replace(
            found.deployment,
            max_num_seqs=int(chosen["max_num_seqs"]),
            max_num_batched_tokens=int(chosen.get("max_num_batched_tokens", 2048)),
        )
        asked = replace(found.asked, max_model_len=int(chosen.get("max_model_len", 8192)))
        assert plan_of(deployment, asked).has_room, point.kind


def _choices(model: str, gpu: str, kind: str, asked: Asked, holds: float | None = None) -> dict[str, str]:
    (point,) = (p for p in starting_points(plan_of(on(model, gpu), asked), holds) if p.kind == kind)
    return {choice.name: choice.value for choice in point.choices}


@pytest.mark.parametrize(("gpu", "tokens"), [("l4", 256), ("a100-80", 1024), ("h100", 2048)])
def test_an_interactive_step_is_as_large_as_its_card_computes_in_a_tenth_of_a_second(
    gpu: str, tokens: int
) -> None:
    """2,048 were advised for every card; on an L4 such a step takes half a second."""
    assert _choices("llama-3.1-8b", gpu, "interactive", Asked(8192))["max_num_batched_tokens"] == str(tokens)


def test_slots_are_what_the_kv_cache_holds_in_whole_sizes_of_graphs() -> None:
    """Not the power of two below, which left up to half of the KV cache unused."""
    for holds, seqs in ((3.9, 3), (8.0, 8), (100.0, 96), (250.0, 248)):
        found = _choices("llama-3.1-8b", "h100", "multi-tenant", Asked(8192), holds)
        assert found["max_num_seqs"] == str(seqs)


def test_long_contexts_get_as_many_slots_as_fit_of_full_length() -> None:
    """SmolLM2 on a T4 was told 32, where 67 of full length fit."""
    found = plan_of(on("smollm2-135m", "t4"), Asked(8192))
    seqs = int(_choices("smollm2-135m", "t4", "long-context", Asked(8192))["max_num_seqs"])
    assert seqs >= min(found.max_concurrency, found.deployment.max_num_seqs)


@pytest.mark.parametrize("kind", ["long-context", "multi-tenant"])
def test_no_threshold_is_longer_than_a_request(kind: str) -> None:
    """vLLM refuses to start with such a one."""
    found = _choices("llama-3.1-8b", "h100", kind, replace(Asked(300), kv_cache_memory_bytes=48 << 20))
    assert int(found["long_prefill_token_threshold"]) <= int(found["max_model_len"]) < 512


def test_starting_points_are_told_for_stages_too_whose_time_is_not_modelled() -> None:
    staged = plan_of(on("llama-3.1-70b", "h100", 2, pipeline_parallel_size=2), Asked(8192))
    assert starting_points(staged)[0].choices[0].value == "2048"
