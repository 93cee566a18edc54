"""First principles: bounds that physics sets, effects that have to show, and a public measurement."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpus import GPUS, Dtype
from headrace.capacity.memory import graph_sizes
from headrace.capacity.roofline import Multipliers, Roofline
from headrace.core.cost import StepShape
from headrace.core.errors import BadInput


def on(model: str, gpu: str, size: int = 1, dtype: Dtype = Dtype.BF16) -> Deployment:
    return Deployment(model_named(model), GPUS[gpu], size, weight_dtype=dtype)


def decode(seqs: int, context_each: int) -> StepShape:
    return StepShape(seqs, seqs * context_each, sampled_seqs=seqs)


def prefill(tokens: int) -> StepShape:
    return StepShape(0, 0, 1, tokens, 0, tokens * (tokens + 1) // 2, 1)


def test_a_decode_step_reads_all_weights_and_cannot_be_faster_than_memory() -> None:
    cost = Roofline(on("llama-3.1-8b", "h100"))
    floor_s = (model_named("llama-3.1-8b").active_parameters * 2 + 1000 * 131072) / 3350e9
    assert floor_s < cost.step_ns(decode(1, 1000)) / 1e9 < 2 * floor_s


def test_a_prompt_cannot_be_faster_than_arithmetic() -> None:
    cost = Roofline(on("llama-3.1-8b", "h100"))
    floor_s = 2 * 8192 * model_named("llama-3.1-8b").always_used_parameters / 989.4e12
    assert floor_s < cost.step_ns(prefill(8192)) / 1e9 < 3 * floor_s


def test_it_agrees_with_a_public_measurement() -> None:
    """75 tokens/s at concurrency 1, 1,024 prompt and 128 output tokens (see the card's `evidence`)."""
    step_s = Roofline(on("llama-3.1-8b", "a100-40")).step_ns(decode(1, 1024 + 64)) / 1e9
    assert 1 / step_s == pytest.approx(75, rel=0.05)


def test_twice_the_batch_costs_less_than_twice_the_time() -> None:
    cost = Roofline(on("llama-3.1-8b", "a100-80"))
    assert cost.step_ns(decode(32, 500)) < 1.3 * cost.step_ns(decode(16, 500))


def test_a_graph_computes_the_next_size_that_was_captured() -> None:
    cost = Roofline(on("llama-3.1-8b", "l4"))
    costs = {seqs: cost.step_ns(StepShape(seqs, 0, sampled_seqs=0)) for seqs in (1, 2, 3, 4, 9, 16, 17)}
    assert costs[3] == costs[4]
    assert costs[9] == costs[16] < costs[17]
    assert graph_sizes(4) == (1, 2, 4, 8)
    assert graph_sizes(1000)[-1] == 512


def test_without_graphs_a_step_takes_at_least_its_launches() -> None:
    eager = Roofline(replace(on("llama-3.1-8b", "b200"), enforce_eager=True))
    captured = Roofline(on("llama-3.1-8b", "b200"))
    assert eager.step_ns(decode(1, 100)) / 1e9 >= 32 * 70e-6
    tiny = StepShape(0, 0, 1, 2, 0, 3, 1)
    assert captured.step_ns(tiny) <= eager.step_ns(tiny)


def test_async_scheduling_hides_the_scheduler_behind_the_gpu() -> None:
    hidden = on("llama-3.1-8b", "h100")
    shown = Roofline(replace(hidden, async_scheduling=False))
    for shape in (decode(200, 1000), prefill(2000)):
        assert Roofline(hidden).step_ns(shape) < shown.step_ns(shape)


def test_pcie_makes_tensor_parallelism_dear() -> None:
    link = GPUS["l40s"].link
    nvlink = on("llama-3.1-70b", "h100", 4)
    pcie = replace(nvlink, gpu=replace(nvlink.gpu, link=link))
    assert Roofline(pcie).step_ns(prefill(2048)) > 1.3 * Roofline(nvlink).step_ns(prefill(2048))
    alone = Roofline(on("llama-3.1-70b", "mi300x"))
    assert Roofline(nvlink).step_ns(decode(1, 10)) < alone.step_ns(decode(1, 10))


def test_a_mixture_reads_more_experts_the_more_tokens_come() -> None:
    cost = Roofline(on("qwen3-30b-a3b", "h100"))
    one, some, many = (cost.step_ns(decode(seqs, 10)) for seqs in (1, 16, 256))
    assert some > 3 * one
    assert many < 16 * one / 2


def test_a_window_bounds_what_decoding_reads() -> None:
    windowed = Roofline(on("gpt-oss-20b", "h100", dtype=Dtype.FP4))
    full = Roofline(
        Deployment(replace(model_named("gpt-oss-20b"), window=None), GPUS["h100"], weight_dtype=Dtype.FP4)
    )
    assert windowed.step_ns(decode(64, 100)) == pytest.approx(full.step_ns(decode(64, 100)), rel=1e-6)
    assert windowed.step_ns(decode(64, 10_000)) < 0.7 * full.step_ns(decode(64, 10_000))
    assert windowed.step_ns(prefill(8000)) < full.step_ns(prefill(8000))


def test_latent_attention_reads_less_than_grouped_queries_would() -> None:
    latent = Roofline(on("deepseek-v3", "h200", 8, Dtype.FP8))
    more = latent.step_ns(decode(64, 4000)) - latent.step_ns(decode(64, 1000))
    bytes_read = 64 * 3000 * 61 * 576 * 2
    assert bytes_read / 4800e9 < more / 1e9 < 2 * bytes_read / 4800e9


def test_multipliers_stretch_what_they_name() -> None:
    deployment = on("llama-3.1-8b", "h100")
    plain = Roofline(deployment)
    assert Roofline(deployment, Multipliers(compute=2)).step_ns(prefill(8000)) > 1.7 * plain.step_ns(
        prefill(8000)
    )
    assert Roofline(deployment, Multipliers(context=2)).step_ns(decode(1, 0)) == plain.step_ns(decode(1, 0))
    with pytest.raises(BadInput, match="compute is -1"):
        Multipliers(compute=-1)
    with pytest.raises(BadInput, match="overhead is nan"):
        Multipliers(overhead=float("nan"))


COSTS = [
    Roofline(on("llama-3.1-8b", "h100")),
    Roofline(replace(on("llama-3.1-70b", "l40s", 8), async_scheduling=False)),
    Roofline(on("gpt-oss-120b", "h100", dtype=Dtype.FP4)),
    Roofline(on("deepseek-v3", "b200", 8, Dtype.FP8)),
]
more = st.integers(0, 3000)


@given(
    st.sampled_from(COSTS),
    st.builds(StepShape, st.integers(0, 900), more, st.just(1), st.integers(2, 9000), more, more, st.just(1)),
    st.builds(StepShape, st.integers(0, 50), more, st.integers(0, 3), more, more, more, st.integers(0, 9)),
)
def test_a_step_with_more_in_it_never_costs_less(cost: Roofline, shape: StepShape, added: StepShape) -> None:
    larger = StepShape(
        *(
            getattr(shape, name) + getattr(added, name) for name in StepShape.__slots__
        )  # fields, in their order
    )
    assert 1 <= cost.step_ns(shape) <= cost.step_ns(larger)
