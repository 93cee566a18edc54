"""The mixture of experts that a `config.json` describes: how many, how wide, in which layers.

ConfigValues + LayerKinds --experts_of--> Experts | None
"""

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.layer_kinds import LayerKinds
from headrace.capacity.models import Experts
from headrace.capacity.strangers import refuse_unread_experts

_COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_topk", "top_k_experts", "moe_k")


def experts_of(read: ConfigValues, kinds: LayerKinds) -> Experts | None:
    """Raises `BadInput` for experts of which something is missing."""
    count = read.optional(*_COUNT)
    if not count:
        refuse_unread_experts(read)
        return None
    size = read.optional("moe_intermediate_size") or read.number("intermediate_size")
    per_token = read.number(*_PER_TOKEN)
    if per_token > count:
        raise read.refused(f"num_experts_per_tok is {per_token}, and there are {count} experts")
    return Experts(
        count,
        per_token,
        size,
        _shared_experts(read, size),
        _dense_layers(read, kinds),
        read.optional("moe_latent_size") or None,
    )


def _shared_experts(read: ConfigValues, size: int) -> int:
    """In units of a routed expert's size, rounded up."""
    count = read.optional("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    whole = read.optional(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"
    )
    if read.flag("enable_moe_block"):  # Gemma 4: every layer has its plain MLP beside the experts
        whole = read.number("intermediate_size")
    if whole:
        return -(-whole * max(count, 1) // size)
    return count or (1 if read.text("model_type") == "llama4_text" else 0)


def _dense_layers(read: ConfigValues, kinds: LayerKinds) -> int:
    layers = kinds.with_mlp
    if kinds.with_experts is not None:
        return layers - kinds.with_experts
    if frequencies := read.items("moe_layer_freq"):  # one for each layer
        return frequencies.count(0)
    dense = read.optional("first_k_dense_replace", "moe_layer_start_index") or len(
        read.items("mlp_only_layers")
    )
    every = read.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    dense = max(dense, layers - layers // every)
    if dense > layers:
        raise read.refused(f"first_k_dense_replace is {dense}, and there are {layers} layers")
    return dense
