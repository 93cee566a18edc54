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
    assert (shape.weight_dtype, shape.only_experts_quantised) == (Dtype.FP4, True)


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
        ({"num_experts": 4, "num_experts_per_tok": 9}, "between 1 and the 4 experts"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        model_from_config({**LLAMA, **change}, "odd")


def test_an_unknown_model_is_told_the_names_there_are() -> None:
    with pytest.raises(BadInput) as caught:
        model_named("llama-9")
    assert caught.value.hint.startswith("did you mean llama-")


def test_a_model_is_found_by_the_name_that_a_hub_has_for_it() -> None:
    assert model_named("meta-llama/llama-3.1-8B-instruct") == model_named("Llama-3.1-8B")


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    experts = Experts(count=128, per_token=8, intermediate_size=768)
    assert experts.expected_distinct(1) == pytest.approx(8)
    assert experts.expected_distinct(0) == 0
    assert 8 < experts.expected_distinct(4) < 32
    assert experts.expected_distinct(1000) == pytest.approx(128)
