"""In what format a checkpoint says that its weights are."""

import pytest

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.gpus import Dtype
from headrace.capacity.quantisation import quantisation_of
from headrace.core.errors import BadInput

LAYERS = 4


def formats(said: dict[str, object]) -> tuple[Dtype, Dtype | None]:
    return quantisation_of(ConfigValues({"quantization_config": said}, "it"), LAYERS)


def test_nothing_said_is_16_bits() -> None:
    assert quantisation_of(ConfigValues({}, "it"), LAYERS) == (Dtype.BF16, None)


@pytest.mark.parametrize(
    ("left", "attention"),
    [
        (["lm_head"], None),
        (["re:.*self_attn.*"], Dtype.BF16),
        ([f"model.layers.{each}.self_attn*" for each in range(LAYERS)], Dtype.BF16),
        ([f"model.layers.{each}.self_attn.q_proj" for each in range(LAYERS)], Dtype.BF16),
        ([f"model.layers.{each}.linear_attn*" for each in range(3)] + ["layers.3.self_attn*"], Dtype.BF16),
        (["model.layers.0.self_attn*"], None),  # one of four
        ([f"model.layers.{each}.self_attn.indexer.weights_proj" for each in range(LAYERS)], None),
    ],
)
def test_attention_is_left_out_where_most_layers_leave_it_out(
    left: list[str], attention: Dtype | None
) -> None:
    assert formats({"quant_method": "fp8", "modules_to_not_convert": left}) == (Dtype.FP8, attention)


def test_mxfp4_and_nvfp4_are_told_apart_by_their_groups() -> None:
    def of(group_size: int) -> tuple[Dtype, Dtype | None]:
        weights = {"num_bits": 4, "type": "float", "group_size": group_size}
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        return formats({"quant_method": "compressed-tensors", "config_groups": groups})

    assert (of(16)[0], of(32)[0]) == (Dtype.NVFP4, Dtype.FP4)


def test_a_checkpoint_of_several_formats_has_that_of_its_experts_and_that_of_its_attention() -> None:
    listed: dict[str, object] = {
        "layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
        "layers.0.mlp.shared_experts.up_proj": {"quant_algo": "FP8"},
    }
    said: dict[str, object] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": listed,
    }
    assert formats(said) == (Dtype.NVFP4, Dtype.FP8)


def test_an_algorithm_that_is_not_known_is_named() -> None:
    with pytest.raises(BadInput, match="quant_algo 'W3A3' is not understood"):
        formats({"quant_method": "modelopt", "quant_algo": "W3A3"})
