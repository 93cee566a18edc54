"""Read a Hugging Face `config.json`, of transformers or as vLLM takes it, into a `ModelShape`.

    {"hidden_size": 4096, ...} --model_from_config--> ModelShape

Names mean what they mean in transformers; where a family computes one from another, so do we. What would be
got wrong is refused (`strangers`).
"""

from collections.abc import Mapping

from headrace.capacity.config_values import ConfigValues
from headrace.capacity.expert_config import experts_of
from headrace.capacity.layer_kinds import LayerKinds, layer_kinds, number_of_layers
from headrace.capacity.models import LatentAttention, ModelShape, Recurrent, SlidingWindow
from headrace.capacity.quantisation import quantisation_of
from headrace.capacity.strangers import head_size_of, kv_heads_of, refuse_strangers

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_TIED_UNLESS_SAID = frozenset({
    "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "cohere", "cohere2", "falcon",
    "starcoder2", "gpt2", "gpt_bigcode", "opt", "bloom", "mpt", "ernie4_5", "ernie4_5_moe", "lfm2", "smollm3",
    "minicpm3",
})  # fmt: skip
"""Families that transformers 5.19 ties where the file is silent, by the defaults of its classes."""
_UNGATED = frozenset({
    "falcon", "nemotron", "nemotron_h", "phi", "starcoder2", "gpt_neox", "gpt2", "gptj", "gpt_bigcode", "opt",
    "bloom", "codegen", "apertus", "arcee",
})  # fmt: skip
"""Families whose MLP has two matrices."""


def model_from_config(config: Mapping[str, object], name: str) -> ModelShape:
    """Raises `BadInput` for what is missing or not understood."""
    whole = ConfigValues(config, name)
    read = whole
    for part in _TEXT_PARTS:
        if isinstance(text := config.get(part), Mapping):  # of a model that also sees
            read = ConfigValues({str(key): value for key, value in text.items()}, name)
            break
    refuse_strangers(read)
    heads, hidden = read.number("num_attention_heads", "n_head"), read.number("hidden_size", "n_embd")
    layers = number_of_layers(read)
    kinds = layer_kinds(read, layers)
    head_size = head_size_of(read, heads, hidden)
    kv_heads = kv_heads_of(read, heads)
    weight_dtype, attention_dtype = quantisation_of(whole, layers)
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=read.optional("num_global_key_value_heads") or kv_heads,
        head_size=read.optional("global_head_dim") or head_size,
        intermediate_size=_intermediate_size(read, hidden),
        vocab_size=read.optional("padded_vocab_size") or read.number("vocab_size"),
        max_model_len=_max_model_len(read),
        tied_embeddings=_is_tied(whole, read),
        experts=experts_of(read, kinds),
        latent=_latent(read),
        window=_window(read, kinds, kv_heads, head_size),
        weight_dtype=weight_dtype,
        attention_dtype=attention_dtype,
        source="config.json",
        recurrent=_recurrent(read, hidden, kinds),
        mlp_layers=kinds.mlp_alone,
        mlp_matrices=2 if read.text("model_type") in _UNGATED else 3,
        gated_attention=read.flag("attn_output_gate") or read.text("model_type") == "qwen3_next",
        encoder_parameters=_encoder_parameters(config.get("vision_config"), name),
    )


def _intermediate_size(read: ConfigValues, hidden: int) -> int:
    """Of the dense layers: Llama 4 has another name for these, Falcon none."""
    said = read.optional("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner")
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
    return read.text("model_type") in _TIED_UNLESS_SAID


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


def _window(read: ConfigValues, kinds: LayerKinds, kv_heads: int, head_size: int) -> SlidingWindow | None:
    """The plain names are of these layers where those with full attention have names of their own."""
    if kinds.chunked:
        return SlidingWindow(read.number("attention_chunk_size"), kinds.chunked, is_chunked=True)
    if not kinds.sliding:
        return None
    tokens = read.number("sliding_window")
    if read.optional("global_head_dim") or read.optional("num_global_key_value_heads"):
        return SlidingWindow(tokens, kinds.sliding, num_kv_heads=kv_heads, head_size=head_size)
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
