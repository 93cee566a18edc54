"""Model shapes: the catalogue against published sizes, and what a config.json may say."""

import pytest

from headrace.capacity.catalogue import catalogue, model_named
from headrace.capacity.gpus import Dtype
from headrace.capacity.model_config import model_from_config
from headrace.capacity.models import Experts
from headrace.core.errors import BadInput

LLAMA = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
DEEPSEEK = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8"},
}
GPT_OSS = {
    "hidden_size": 2880,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}


def test_the_catalogue_has_as_many_parameters_as_are_published() -> None:
    assert len(catalogue()) >= 40
    for name, entry in catalogue().items():
        assert entry.shape.parameters == pytest.approx(entry.parameters, rel=0.01), name
        if entry.active_parameters is not None:
            assert entry.shape.active_parameters == pytest.approx(entry.active_parameters, rel=0.1), name


def test_nobody_is_in_the_catalogue_twice() -> None:
    hubs = [hub.lower() for entry in catalogue().values() for hub in entry.hub]
    assert len(hubs) == len(set(hubs))


def test_a_config_gives_the_shape_that_the_catalogue_has() -> None:
    for name, config in (("llama-3.1-8b", LLAMA), ("deepseek-v3", DEEPSEEK)):
        read, known = model_from_config(config, name), model_named(name)
        assert (read.parameters, read.experts, read.latent) == (known.parameters, known.experts, known.latent)
        assert read.weight_dtype is known.weight_dtype


def test_sliding_layers_and_quantised_experts_are_read() -> None:
    shape = model_from_config(GPT_OSS, "four layers of gpt-oss")
    assert shape.window is not None
    assert (shape.window.tokens, shape.window.layers) == (128, 2)
    assert (shape.weight_dtype, shape.attention_dtype) == (Dtype.FP4, Dtype.BF16)


def test_the_text_part_of_a_model_that_sees_is_read() -> None:
    assert (
        model_from_config({"text_config": LLAMA}, "seeing").parameters
        == model_named("llama-3.1-8b").parameters
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_size": None}, "says no hidden_size or n_embd"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"layer_types": ["full_attention"] * 31 + ["lightning_attention"]}, "lightning_attention"),
        ({"layer_types": ["full_attention"] * 3}, "3 entries"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"quantization_config": {"quant_method": "magic"}}, "'magic'"),
        ({"num_experts": 4, "num_experts_per_tok": 9}, "9, and there are 4 experts"),
        ({"num_experts": 64}, "says no num_experts_per_tok"),
        ({"expert_count": 64}, "expert_count in config.json, and no number of experts"),
        ({"num_key_value_heads": 7}, "32 attention heads cannot share 7 KV heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_size": 4100}, "4100 is no multiple of num_attention_heads 32"),
        ({"sliding_window": [4096, None]}, "sliding_window is"),
        ({"model_type": "bert"}, "bert is an encoder.*no KV cache"),
        ({"model_type": "xlm-roberta"}, "is an encoder"),
        ({"architectures": ["SomeForMaskedLM"]}, "is an encoder"),
        ({"model_type": "qwen2", "is_causal": False}, "is an encoder"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "layers of Mamba 1"),
        ({"compress_ratios": [0, 4, 128]}, "compressed along the context"),
        ({"hybrid_layer_pattern": [0, 1, 1]}, "windows in an order"),
        ({"head_dim": 192, "v_head_dim": 128}, "values of another size than keys"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "Kimi Delta Attention"),
        ({"block_configs": [{}]}, "layers that differ"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        model_from_config({**LLAMA, **change}, "odd")


def test_experts_that_compute_at_another_width_are_counted_at_it() -> None:
    """Nemotron 3 Super: at 4096 instead of 1024 its experts would be 459 billion weights, not 120."""
    shape = model_named("nemotron-3-super-120b-a12b")
    assert shape.experts is not None
    assert shape.expert_parameters == 2 * 1024 * 2688
    assert shape.parameters == pytest.approx(120.6e9, rel=0.01)


def test_layers_that_are_listed_need_no_number() -> None:
    listed = {**LLAMA, "num_hidden_layers": None, "layers_block_type": ["attention", "mlp", "moe"] * 2}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    shape = model_from_config({**listed, **experts}, "listed")
    assert (shape.num_layers, shape.num_attention_layers) == (6, 2)
    assert (shape.num_dense_layers, shape.num_expert_layers) == (2, 2)


def test_a_layer_may_have_experts_beside_its_own_mlp() -> None:
    """Gemma 4 26B-A4B, by its own name for the experts of a token."""
    beside = {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 2048}
    shape = model_from_config({**LLAMA, **beside}, "beside")
    assert shape.experts is not None
    assert (shape.experts.per_token, shape.experts.shared) == (8, 7)  # 14336 of 2048 each


def test_which_layers_have_experts_may_be_listed() -> None:
    listed = {"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 0, 0] + [1] * 29}
    assert model_from_config({**LLAMA, **listed}, "listed").num_dense_layers == 3


def test_a_repository_of_the_same_shape_may_be_longer() -> None:
    assert model_named("Qwen/Qwen3-30B-A3B").max_model_len == 40_960
    assert model_named("qwen/qwen3-30b-a3b-instruct-2507").max_model_len == 262_144


def test_an_unknown_model_is_told_the_names_there_are() -> None:
    with pytest.raises(BadInput) as caught:
        model_named("llama-9")
    assert caught.value.hint.startswith("did you mean llama-")


def test_a_model_is_found_by_the_name_that_a_hub_has_for_it() -> None:
    assert model_named("meta-llama/llama-3.1-8B-instruct") == model_named("Llama-3.1-8B")


def test_the_organisation_of_a_hub_may_be_left_out_as_no_two_models_share_the_rest() -> None:
    assert model_named("Llama-3.1-8B-Instruct") == model_named("meta-llama/Llama-3.1-8B-Instruct")
    shapes: dict[str, set[str]] = {}
    for name, entry in catalogue().items():
        for hub in entry.hub:
            shapes.setdefault(hub.lower().rpartition("/")[2], set()).add(name)
    assert [hub for hub, names in shapes.items() if len(names) > 1] == []


@pytest.mark.parametrize("keys", [{"mamba_d_state": 128, "mamba_n_heads": 64}, {"state_size": 16}])
def test_states_of_layers_that_nobody_names_are_not_planned_as_attention(keys: dict[str, int]) -> None:
    """Bamba lists its layers with attention instead: it was planned as 32 of them, without a state."""
    with pytest.raises(BadInput, match=next(iter(keys))):
        model_from_config({**LLAMA, **keys}, "bamba")


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    experts = Experts(count=128, per_token=8, intermediate_size=768)
    assert experts.expected_distinct(1) == pytest.approx(8)
    assert experts.expected_distinct(0) == 0
    assert 8 < experts.expected_distinct(4) < 32
    assert experts.expected_distinct(1000) == pytest.approx(128)
