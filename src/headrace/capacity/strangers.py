"""What a `config.json` says that would be got wrong in silence: refused, with the reason.

Encoders, which keep nothing between steps; families whose layers keep something else of a token than is
counted here; numbers that contradict each other.
"""

from headrace.capacity.config_values import ConfigValues

_ENCODERS = frozenset({"electra", "mpnet", "new", "gte", "t5encoder", "clip", "siglip", "siglip2", "vit"})
"""Beside those with BERT in their name: families that vLLM serves for embeddings, scores or classes."""
_STRANGE = {
    "ssm_cfg": "layers of Mamba",
    "state_size": "layers of Mamba",
    "mamba_d_ssm": "layers that are attention and state at once",
    "num_kv_shared_layers": "layers that share their keys",
    "use_cla": "layers that share their keys",
    "compress_ratios": "a KV cache that is compressed along the context",
    "sparse_attention_config": "an index beside keys and values",
    "hybrid_layer_pattern": "windows in an order that is not read",
    "linear_attn_config": "layers of Kimi Delta Attention",
    "cross_attention_layers": "layers that attend to an encoder",
    "block_configs": "layers that differ from each other",
}
"""Keys that change what a request keeps, or how many weights there are, and what they stand for."""


def refuse_strangers(read: ConfigValues) -> None:
    """Raises `BadInput` for what is no decoder, or one that is not understood."""
    if _is_encoder(read):
        raise read.refused(
            f"{read.text('model_type') or 'this'} is an encoder: vLLM serves it for embeddings, scores or "
            "classes, and it keeps no KV cache",
            "its weights, and the activations of max_num_batched_tokens, are all that it takes; "
            "plan is about models that generate",
        )
    if read.flag("is_encoder_decoder"):
        raise read.refused(
            "is_encoder_decoder is true, and what its decoder keeps of the encoder is not counted here",
            "plan is about models that only decode",
        )
    strange = {key: why for key, why in _STRANGE.items() if read.values.get(key)}
    value_size, has_latent = read.values.get("v_head_dim"), read.values.get("kv_lora_rank")
    if value_size and not has_latent and value_size != read.values.get("head_dim"):
        strange["v_head_dim"] = "values of another size than keys"
    if read.values.get("mamba_d_state") and not read.values.get("mamba_n_heads"):
        strange["mamba_d_state"] = "layers of Mamba 1"
    if strange:
        raise read.refused(
            "; ".join(f"{key} in config.json means {why}" for key, why in strange.items())
            + "; what these take is not worked out here",
            "decoders with attention, Mamba 2 or gated-delta layers of their own are; "
            "or give the numbers: --layers, --kv-heads, --head-dim, --parameters",
        )


def _is_encoder(read: ConfigValues) -> bool:
    family = read.text("model_type")
    masked = any(str(each).endswith("ForMaskedLM") for each in read.items("architectures"))
    return "bert" in family or family in _ENCODERS or masked or read.values.get("is_causal") is False


def head_size_of(read: ConfigValues, heads: int, hidden: int) -> int:
    """As said, or the hidden size over the heads. Raises `BadInput` where that does not divide."""
    keys = ("head_dim", "attention_head_dim", "kv_channels")
    if any(read.values.get(key) is not None for key in keys):
        return read.number(*keys)
    if hidden % heads:
        raise read.refused(
            f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and no head_dim is said"
        )
    return hidden // heads


def kv_heads_of(read: ConfigValues, heads: int) -> int:
    """Raises `BadInput` where the attention heads cannot share them evenly."""
    if read.flag("multi_query") and not read.flag("new_decoder_architecture"):  # Falcon's first
        return 1
    keys = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
    if all(read.values.get(key) is None for key in keys):
        return heads
    shared = read.number(*keys)
    refuse_uneven(heads, shared, read)
    return shared


def refuse_uneven(heads: int, kv_heads: int, read: ConfigValues) -> None:
    """Raises `BadInput` where heads cannot share KV heads evenly."""
    if heads % kv_heads:
        raise read.refused(
            f"{heads} attention heads cannot share {kv_heads} KV heads evenly",
            "num_attention_heads must be a multiple of num_key_value_heads",
        )


def refuse_unread_experts(read: ConfigValues) -> None:
    """Raises `BadInput` where keys speak of experts, and none of them says how many there are."""
    spoken = [
        key
        for key, value in read.values.items()
        if "expert" in key and isinstance(value, int) and not isinstance(value, bool) and value > 1
    ]
    if spoken:
        raise read.refused(
            f"{', '.join(spoken)} in config.json, and no number of experts that is understood",
            "num_local_experts, num_experts, n_routed_experts or moe_num_experts says how many there are",
        )
