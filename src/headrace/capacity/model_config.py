"""Read a Hugging Face `config.json`, of transformers or as vLLM takes it, into a `ModelShape`.

    {"hidden_size": 4096, ...} --model_from_config--> ModelShape

Names mean what they mean in transformers; where a family computes one from another, so do we. What would be
got wrong is refused: encoders, layers that are attention and state at once, layers that share their keys.
"""

from collections.abc import Mapping

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.layer_kinds import LayerKinds, layer_kinds
from headrace.capacity.models import Experts, LatentAttention, ModelShape, Recurrent, SlidingWindow
from headrace.capacity.quantisation import quantisation_of
from headrace.core.errors import BadInput

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_UNTIED_UNLESS_SAID = frozenset({
    "llama", "llama4_text", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "phi3", "phimoe", "olmo2", "olmo3", "glm4",
    "glm4_moe", "chatglm", "gpt_oss", "nemotron_h", "minimax_m2",
})  # fmt: skip
"""Families that transformers does not tie where the file is silent."""
_UNGATED = frozenset({"falcon", "nemotron", "nemotron_h", "phi", "starcoder2", "gpt_neox", "gpt2", "opt"})
"""Families whose MLP has two matrices."""


def model_from_config(config: Mapping[str, object], name: str) -> ModelShape:
    """Raises `BadInput` for what is missing or not understood."""
    whole = ConfigValues(config, name)
    read = whole
    for part in _TEXT_PARTS:
        if isinstance(text := config.get(part), Mapping):  # of a model that also sees
            read = ConfigValues({str(key): value for key, value in text.items()}, name)
            break
    _refuse_strangers(read, name)
    heads, hidden = read.number("num_attention_heads", "n_head"), read.number("hidden_size", "n_embd")
    layers = read.number("num_hidden_layers", "n_layer", "num_layers")
    kinds = layer_kinds(read, layers)
    head_size = read.optional("head_dim", "attention_head_dim", "kv_channels") or hidden // heads
    weight_dtype, only_experts = quantisation_of(whole)
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=read.optional("num_global_key_value_heads") or _kv_heads(read, heads),
        head_size=read.optional("global_head_dim") or head_size,
        intermediate_size=_intermediate_size(read, hidden),
        vocab_size=read.optional("padded_vocab_size") or read.number("vocab_size"),
        max_model_len=_max_model_len(read),
        tied_embeddings=_is_tied(whole, read),
        experts=_experts(read, kinds),
        latent=_latent(read),
        window=_window(read, kinds, heads, head_size),
        weight_dtype=weight_dtype,
        only_experts_quantised=only_experts,
        source="config.json",
        recurrent=_recurrent(read, hidden, kinds),
        mlp_layers=kinds.mlp_alone,
        mlp_matrices=2 if read.text("model_type") in _UNGATED else 3,
        gated_attention=read.flag("attn_output_gate") or read.text("model_type") == "qwen3_next",
        encoder_parameters=_encoder_parameters(config.get("vision_config"), name),
    )


def _refuse_strangers(read: ConfigValues, name: str) -> None:
    strange = [key for key in ("ssm_cfg", "is_encoder_decoder", "mamba_d_ssm") if read.values.get(key)]
    if read.values.get("mamba_d_state") and not read.values.get("mamba_n_heads"):
        strange.append("mamba_d_state")
    if read.values.get("num_kv_shared_layers"):
        strange.append("num_kv_shared_layers")
    if strange:
        raise BadInput(
            f"{name} has {', '.join(strange)} in config.json, which is not understood here",
            "decoders with attention, Mamba 2 or gated-delta layers of their own are; "
            "or give the numbers: --layers, --kv-heads, --head-dim, --parameters",
        )


def _kv_heads(read: ConfigValues, heads: int) -> int:
    if read.flag("multi_query") and not read.flag("new_decoder_architecture"):  # Falcon's first
        return 1
    said = read.optional("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
    return said or heads


def _intermediate_size(read: ConfigValues, hidden: int) -> int:
    """Of the dense layers: Llama 4 has another name for these, Falcon none."""
    said = read.optional("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size")
    if not said and (read.text("model_type") in _UNGATED or read.optional("moe_intermediate_size")):
        return 4 * hidden
    return said or read.number("intermediate_size")


def _max_model_len(read: ConfigValues) -> int:
    """As vLLM derives it: with YaRN the length before it times the factor."""
    longest = read.optional("max_position_embeddings", "seq_length", "max_seq_len", "n_positions") or 2048
    scaling = read.mapping("rope_scaling") or read.mapping("rope_parameters")
    original = scaling.get("original_max_position_embeddings")
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) != "yarn":
        return longest
    if not isinstance(original, int) or not isinstance(factor, int | float) or factor < 1:
        return longest
    return int(original * factor)


def _is_tied(whole: ConfigValues, read: ConfigValues) -> bool:
    for values in (read.values, whole.values):
        if isinstance(said := values.get("tie_word_embeddings"), bool):
            return said
    return read.text("model_type") not in _UNTIED_UNLESS_SAID


def _experts(read: ConfigValues, kinds: LayerKinds) -> Experts | None:
    count = read.optional("num_local_experts", "num_experts", "n_routed_experts")
    if not count:
        return None
    size = read.optional("moe_intermediate_size") or read.number("intermediate_size")
    per_token = read.optional("num_experts_per_tok", "experts_per_token", "moe_topk")
    if not 1 <= per_token <= count:
        raise BadInput(f"num_experts_per_tok is {per_token}; it must lie between 1 and the {count} experts")
    return Experts(count, per_token, size, _shared_experts(read, size), _dense_layers(read, kinds))


def _shared_experts(read: ConfigValues, size: int) -> int:
    """In units of a routed expert's size, rounded up."""
    count = read.optional("n_shared_experts", "num_shared_experts")
    whole = read.optional(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"
    )
    if whole:
        return -(-whole * max(count, 1) // size)
    return count or (1 if read.text("model_type") == "llama4_text" else 0)


def _dense_layers(read: ConfigValues, kinds: LayerKinds) -> int:
    layers = kinds.with_mlp
    if kinds.with_experts is not None:
        return layers - kinds.with_experts
    dense = read.optional("first_k_dense_replace") or len(read.items("mlp_only_layers"))
    every = read.optional("decoder_sparse_step", "interleave_moe_layer_step") or 1
    dense = max(dense, layers - layers // every)
    if dense > layers:
        raise BadInput(f"first_k_dense_replace is {dense}, and there are {layers} layers")
    return dense


def _latent(read: ConfigValues) -> LatentAttention | None:
    rank = read.optional("kv_lora_rank")
    if not rank:
        return None
    indexer = read.optional("index_head_dim")
    return LatentAttention(
        rank,
        read.optional("q_lora_rank"),
        read.number("qk_nope_head_dim"),
        read.number("qk_rope_head_dim"),
        read.number("v_head_dim"),
        indexer + 4 if indexer else 0,  # fp8, and a scale in float32
    )


def _window(read: ConfigValues, kinds: LayerKinds, heads: int, head_size: int) -> SlidingWindow | None:
    """The plain names are of these layers where those with full attention have names of their own."""
    if kinds.chunked:
        return SlidingWindow(read.number("attention_chunk_size"), kinds.chunked, is_chunked=True)
    if not kinds.sliding:
        return None
    tokens = read.number("sliding_window")
    if read.optional("global_head_dim") or read.optional("num_global_key_value_heads"):
        return SlidingWindow(tokens, kinds.sliding, num_kv_heads=_kv_heads(read, heads), head_size=head_size)
    return SlidingWindow(tokens, kinds.sliding)


def _recurrent(read: ConfigValues, hidden: int, kinds: LayerKinds) -> Recurrent | None:
    if not kinds.state:
        return None
    said = read.text("mamba_ssm_cache_dtype") or read.text("mamba_ssm_dtype")
    state_bytes = 4 if said == "float32" else 2
    if read.optional("linear_num_value_heads"):  # gated delta net
        keys = read.number("linear_num_key_heads") * read.number("linear_key_head_dim")
        value_heads, value_size = read.number("linear_num_value_heads"), read.number("linear_value_head_dim")
        values, kernel = value_heads * value_size, read.number("linear_conv_kernel_dim")
        mixed = 2 * keys + values
        weights = hidden * (mixed + values + 2 * value_heads) + mixed * kernel + values * hidden
        state = values * read.number("linear_key_head_dim")
        return Recurrent(kinds.state, weights, mixed * (kernel - 1), state, state_bytes)
    heads, size = (
        read.number("mamba_num_heads", "mamba_n_heads"),
        read.number("mamba_head_dim", "mamba_d_head"),
    )
    groups, state = read.number("n_groups", "mamba_n_groups"), read.number("ssm_state_size", "mamba_d_state")
    kernel, inner = read.number("conv_kernel", "mamba_d_conv"), heads * size
    mixed = inner + 2 * groups * state
    weights = hidden * (inner + mixed + heads) + mixed * kernel + inner * hidden
    return Recurrent(kinds.state, weights, mixed * (kernel - 1), inner * state, state_bytes)


def _encoder_parameters(vision: object, name: str) -> int:
    """Of a vision transformer, roughly: attention and two matrices a layer."""
    if not isinstance(vision, Mapping):
        return 0
    read = ConfigValues({str(key): value for key, value in vision.items()}, name)
    hidden, layers = read.optional("hidden_size", "embed_dim"), read.optional("num_hidden_layers", "depth")
    inner = read.optional("intermediate_size") or 4 * hidden
    return layers * hidden * (4 * hidden + 2 * inner)
