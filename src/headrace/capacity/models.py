"""Language models in numbers: how many weights, of what use, and what a token leaves in the KV cache.

    config.json | name in the catalogue --> ModelShape --> parameters

Decoder-only transformers with full or sliding attention, GQA or MLA, dense or mixture of experts.
Norms and biases are left out: under one part in a thousand. Refuses architectures it would get
wrong (state-space layers, encoders).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.capacity.gpus import Dtype
from headrace.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts layers; all but the first `dense_layers`."""

    count: int
    per_token: int
    intermediate_size: int
    shared: int = 0
    """Experts that every token passes, of the same size."""
    dense_layers: int = 0

    def expected_distinct(self, tokens: int) -> float:
        """How many experts of a layer `tokens` tokens touch, if routing were even.

        A token leaves a given expert alone with probability 1 - k/E; all n do with (1 - k/E)^n.
        """
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA: keys and values of all heads are projections of one short vector, and only that is cached."""

    kv_lora_rank: int
    q_lora_rank: int
    """0 where queries are projected directly."""
    qk_nope_head_size: int
    qk_rope_head_size: int
    v_head_size: int


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that attend to the last `tokens` tokens only."""

    tokens: int
    layers: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything about a model that its memory and its arithmetic depend on."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    """Of dense layers."""
    vocab_size: int
    max_model_len: int
    tied_embeddings: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: SlidingWindow | None = None
    weight_dtype: Dtype = Dtype.BF16
    """As published, of the matrices that are quantised at all."""
    only_experts_quantised: bool = False
    source: str = ""

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        hidden, heads = self.hidden_size, self.num_heads
        if (latent := self.latent) is None:
            return hidden * self.head_size * 2 * (heads + self.num_kv_heads)
        query_size = heads * (latent.qk_nope_head_size + latent.qk_rope_head_size)
        rank = latent.q_lora_rank
        query = hidden * rank + rank * query_size if rank else hidden * query_size
        down = hidden * (latent.kv_lora_rank + latent.qk_rope_head_size)
        up = latent.kv_lora_rank * heads * (latent.qk_nope_head_size + latent.v_head_size)
        return query + down + up + heads * latent.v_head_size * hidden

    @property
    def num_dense_layers(self) -> int:
        return self.num_layers if self.experts is None else self.experts.dense_layers

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers - self.num_dense_layers

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return 0 if self.experts is None else 3 * self.hidden_size * self.experts.intermediate_size

    @property
    def always_used_parameters(self) -> int:
        """What every token passes: attention, dense layers, routers and shared experts of all layers."""
        used = self.num_layers * self.attention_parameters
        used += self.num_dense_layers * 3 * self.hidden_size * self.intermediate_size
        if (experts := self.experts) is not None:
            router = self.hidden_size * experts.count
            used += self.num_expert_layers * (router + experts.shared * self.expert_parameters)
        return used

    @property
    def routed_parameters(self) -> int:
        """All routed experts of all layers."""
        return (
            0
            if self.experts is None
            else self.num_expert_layers * self.experts.count * self.expert_parameters
        )

    @property
    def vocabulary_parameters(self) -> int:
        """One matrix of the vocabulary: the embedding, or the projection onto it."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        matrices = 1 if self.tied_embeddings else 2
        return self.always_used_parameters + self.routed_parameters + matrices * self.vocabulary_parameters

    @property
    def active_parameters(self) -> int:
        """What one token is multiplied with, the vocabulary projection included."""
        routed = (
            0
            if self.experts is None
            else self.num_expert_layers * self.experts.per_token * self.expert_parameters
        )
        return self.always_used_parameters + routed + self.vocabulary_parameters


_HUB = "huggingface.co/{}/blob/main/config.json"
_DEEPSEEK_MLA = LatentAttention(512, 1536, 128, 64, 128)

_SHAPES = (
    ModelShape(
        "llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072,
        source=_HUB.format("meta-llama/Llama-3.1-8B"),
    ),
    ModelShape(
        "llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072,
        source=_HUB.format("meta-llama/Llama-3.1-70B"),
    ),
    ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, source=_HUB.format("Qwen/Qwen3-8B")),
    ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, 40960, source=_HUB.format("Qwen/Qwen3-32B")),
    ModelShape(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 6144, 151936, 40960,
        experts=Experts(128, 8, 768),
        source=_HUB.format("Qwen/Qwen3-30B-A3B"),
    ),
    ModelShape(
        "mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768,
        experts=Experts(8, 2, 14336),
        source=_HUB.format("mistralai/Mixtral-8x7B-v0.1"),
    ),
    ModelShape(
        "deepseek-v3", 61, 7168, 128, 128, 128, 18432, 129280, 163840,
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3),
        latent=_DEEPSEEK_MLA,
        weight_dtype=Dtype.FP8,
        source=_HUB.format("deepseek-ai/DeepSeek-V3"),
    ),
    ModelShape(
        "gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088, 131072,
        experts=Experts(32, 4, 2880),
        window=SlidingWindow(128, 12),
        weight_dtype=Dtype.FP4,
        only_experts_quantised=True,
        source=_HUB.format("openai/gpt-oss-20b"),
    ),
    ModelShape(
        "gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 201088, 131072,
        experts=Experts(128, 4, 2880),
        window=SlidingWindow(128, 18),
        weight_dtype=Dtype.FP4,
        only_experts_quantised=True,
        source=_HUB.format("openai/gpt-oss-120b"),
    ),
)  # fmt: skip

MODELS: dict[str, ModelShape] = {shape.name: shape for shape in _SHAPES}


def model_named(name: str) -> ModelShape:
    """Raises `BadInput` with the names there are."""
    shape = MODELS.get(name.lower())
    if shape is None:
        raise BadInput(f"no model {name!r} in the catalogue", f"one of {', '.join(MODELS)}")
    return shape


def model_from_config(config: Mapping[str, object], name: str) -> ModelShape:
    """Read a Hugging Face `config.json`. Raises `BadInput` for what is missing or not understood."""
    text = config.get("text_config")
    if isinstance(text, Mapping):  # of a model that also sees
        config = {str(key): value for key, value in text.items()}
    read = _Config(config, name)
    read.refuse_strangers()
    heads = read.number("num_attention_heads")
    hidden = read.number("hidden_size")
    layers = read.number("num_hidden_layers")
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=read.number("num_key_value_heads", heads),
        head_size=read.number("head_dim", hidden // heads),
        intermediate_size=read.number("intermediate_size"),
        vocab_size=read.number("vocab_size"),
        max_model_len=read.number("max_position_embeddings"),
        tied_embeddings=config.get("tie_word_embeddings", True) is True,
        experts=_experts(read, layers),
        latent=_latent(read),
        window=_window(read, layers),
        weight_dtype=_weight_dtype(config),
        only_experts_quantised=_weight_dtype(config) is Dtype.FP4,
        source="config.json",
    )


class _Config:
    """Values of a config, checked as they are taken."""

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self.values = values
        self._name = name

    def number(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(
                f"{self._name}: {key} is {value!r} in config.json; a whole number above 0 is needed"
            )
        return value

    def first_number(self, *keys: str) -> int:
        """Of keys that mean the same, the one that is there; 0 if none is."""
        return next((self.number(key) for key in keys if self.values.get(key)), 0)

    def layer_kinds(self) -> list[str]:
        kinds = self.values.get("layer_types")
        return [str(kind) for kind in kinds] if isinstance(kinds, list) else []

    def refuse_strangers(self) -> None:
        strange = {kind for kind in self.layer_kinds() if kind not in ("full_attention", "sliding_attention")}
        strange |= {key for key in ("ssm_cfg", "mamba_d_state", "is_encoder_decoder") if self.values.get(key)}
        if strange:
            raise BadInput(
                f"{self._name} has {', '.join(sorted(strange))}: only decoders with attention are understood"
            )


def _experts(read: _Config, layers: int) -> Experts | None:
    count = read.first_number("num_local_experts", "num_experts", "n_routed_experts")
    if not count:
        return None
    size = read.first_number("moe_intermediate_size") or read.number("intermediate_size")
    dense = read.first_number("first_k_dense_replace")
    if dense > layers:
        raise BadInput(f"first_k_dense_replace is {dense}, and there are {layers} layers")
    per_token = read.first_number("num_experts_per_tok", "experts_per_token")
    if not 1 <= per_token <= count:
        raise BadInput(f"num_experts_per_tok is {per_token}; it must lie between 1 and the {count} experts")
    return Experts(count, per_token, size, read.first_number("n_shared_experts"), dense)


def _latent(read: _Config) -> LatentAttention | None:
    rank = read.first_number("kv_lora_rank")
    if not rank:
        return None
    return LatentAttention(
        rank,
        read.first_number("q_lora_rank"),
        read.number("qk_nope_head_dim"),
        read.number("qk_rope_head_dim"),
        read.number("v_head_dim"),
    )


def _window(read: _Config, layers: int) -> SlidingWindow | None:
    tokens = read.first_number("sliding_window")
    if not tokens or read.values.get("use_sliding_window") is False:
        return None
    kinds = read.layer_kinds()
    sliding = kinds.count("sliding_attention") if kinds else layers
    return SlidingWindow(tokens, sliding) if sliding else None


def _weight_dtype(config: Mapping[str, object]) -> Dtype:
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return Dtype.BF16
    method = str(quantised.get("quant_method"))
    known = {"fp8": Dtype.FP8, "mxfp4": Dtype.FP4, "awq": Dtype.INT4, "gptq": Dtype.INT4}
    if method not in known:
        raise BadInput(f"quant_method {method!r} is not understood", f"one of {', '.join(known)}, or none")
    return known[method]
