"""Language models in numbers: how many weights, of what use, and what a token leaves in the KV cache.

    config.json (`model_config`) | name in the catalogue (`catalogue`) --> ModelShape --> parameters

Decoder-only: full, sliding or chunked attention, GQA or MLA, layers with a state instead of attention,
dense or mixture of experts. Norms and biases are left out: under one part in a thousand.
"""

from dataclasses import dataclass

from headrace.capacity.gpus import Dtype


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts layers: all that have an MLP, but `dense_layers`."""

    count: int
    per_token: int
    intermediate_size: int
    shared: int = 0
    """Experts that every token passes, of the same size."""
    dense_layers: int = 0
    """Layers with a plain MLP instead."""
    latent_size: int | None = None
    """Width that routed experts compute at, where it is not the hidden size (Nemotron 3 Super)."""

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
    indexer_bytes: int = 0
    """Of one token and layer, beside the vector: keys by which sparse attention chooses (DeepSeek V3.2)."""

    @property
    def cached_numbers(self) -> int:
        """Of one token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_size


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that attend to the last `tokens` tokens only."""

    tokens: int
    layers: int
    is_chunked: bool = False
    """To their own chunk of `tokens` instead (Llama 4)."""
    num_kv_heads: int | None = None
    """Where it is another number than in the layers with full attention (Gemma 4), as is the head size."""
    head_size: int | None = None


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep a state of fixed size for each request instead of keys and values."""

    layers: int
    parameters: int
    """Of one layer."""
    conv_numbers: int
    """The last inputs of the short convolution, in the model's own format; of one layer, whole."""
    state_numbers: int
    state_bytes: int = 2
    """Of one number of the state: 4 where the config asks for float32."""


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
    attention_dtype: Dtype | None = None
    """Of attention and states, where the checkpoint has these in another format."""
    source: str = ""
    recurrent: Recurrent | None = None
    mlp_layers: int | None = None
    """None: every layer. Where a layer is attention, a state or an MLP alone (Nemotron-H), how many are."""
    mlp_matrices: int = 3
    """Two where nothing gates."""
    gated_attention: bool = False
    """Queries come with a gate of their size (Qwen 3.5)."""
    encoder_parameters: int = 0
    """Of what sees or hears; never quantised."""

    @property
    def num_attention_layers(self) -> int:
        states = 0 if self.recurrent is None else self.recurrent.layers
        alone = self.mlp_layers or 0
        return self.num_layers - states - alone

    @property
    def num_window_layers(self) -> int:
        return self.window.layers if self.window else 0

    @property
    def num_full_layers(self) -> int:
        """With attention to all that came before."""
        return self.num_attention_layers - self.num_window_layers

    @property
    def attention_parameters(self) -> int:
        """Of one layer with full attention."""
        hidden, heads = self.hidden_size, self.num_heads
        if (latent := self.latent) is None:
            return self._grouped_attention(self.num_kv_heads, self.head_size)
        query_size = heads * (latent.qk_nope_head_size + latent.qk_rope_head_size)
        rank = latent.q_lora_rank
        query = hidden * rank + rank * query_size if rank else hidden * query_size
        up = latent.kv_lora_rank * heads * (latent.qk_nope_head_size + latent.v_head_size)
        return query + hidden * latent.cached_numbers + up + heads * latent.v_head_size * hidden

    @property
    def window_attention_parameters(self) -> int:
        """Of one layer with a window."""
        if self.window is None or self.latent is not None:
            return self.attention_parameters
        heads, size = self.window.num_kv_heads, self.window.head_size
        return self._grouped_attention(heads or self.num_kv_heads, size or self.head_size)

    def _grouped_attention(self, kv_heads: int, head_size: int) -> int:
        query_and_result = (3 if self.gated_attention else 2) * self.num_heads
        return self.hidden_size * head_size * (query_and_result + 2 * kv_heads)

    @property
    def num_mlp_layers(self) -> int:
        return self.num_layers if self.mlp_layers is None else self.mlp_layers

    @property
    def num_dense_layers(self) -> int:
        return self.num_mlp_layers if self.experts is None else self.experts.dense_layers

    @property
    def num_expert_layers(self) -> int:
        return self.num_mlp_layers - self.num_dense_layers

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        if (experts := self.experts) is None:
            return 0
        return self.mlp_matrices * (experts.latent_size or self.hidden_size) * experts.intermediate_size

    @property
    def mixing_parameters(self) -> int:
        """Of all layers, what lets tokens see each other: attention and states."""
        states = 0 if self.recurrent is None else self.recurrent.layers * self.recurrent.parameters
        full = self.num_full_layers * self.attention_parameters
        return full + self.num_window_layers * self.window_attention_parameters + states

    @property
    def always_used_parameters(self) -> int:
        """What every token passes: attention, states, dense MLPs, routers and shared experts."""
        used = self.mixing_parameters
        used += self.num_dense_layers * self.mlp_matrices * self.hidden_size * self.intermediate_size
        if (experts := self.experts) is not None:
            router = self.hidden_size * experts.count
            shared = experts.shared * self.mlp_matrices * self.hidden_size * experts.intermediate_size
            there_and_back = 2 * self.hidden_size * (experts.latent_size or 0)
            used += self.num_expert_layers * (router + shared + there_and_back)
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
        return (
            self.always_used_parameters
            + self.routed_parameters
            + self.vocabulary_matrices * self.vocabulary_parameters
            + self.encoder_parameters
        )

    @property
    def vocabulary_matrices(self) -> int:
        return 1 if self.tied_embeddings else 2

    @property
    def active_parameters(self) -> int:
        """What one token is multiplied with, the vocabulary projection included."""
        routed = (
            0
            if self.experts is None
            else self.num_expert_layers * self.experts.per_token * self.expert_parameters
        )
        return self.always_used_parameters + routed + self.vocabulary_parameters
