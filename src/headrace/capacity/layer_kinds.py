"""How many layers of a model attend to everything, to a window, keep a state, or are an MLP alone.

Families say it in five ways: a list of kinds, a pattern of letters, an interval, the name of the family, and
one window for all.
"""

from dataclasses import dataclass

from headrace.capacity.config_values import ConfigValues

_FULL = frozenset({"full_attention", "attention", "global_attention", "deepseek_sparse_attention"})
_SLIDING = frozenset({"sliding_attention", "local_attention"})
_STATE = frozenset({"linear_attention", "mamba", "mamba2"})
_STATE_KEYS = ("mamba_d_state", "mamba_n_heads", "mamba_num_heads", "ssm_state_size")
_MLP, _EXPERTS = "mlp", "moe"
_INTERVALS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "gpt-oss": 2}
"""Every so manieth layer attends to everything, where no key says it."""
_LLAMA4_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Counts; together all layers."""

    full: int
    sliding: int = 0
    chunked: int = 0
    state: int = 0
    mlp_alone: int | None = None
    """None where every layer has an MLP beside what it is."""
    with_experts: int | None = None
    """Of `mlp_alone`."""

    @property
    def with_mlp(self) -> int:
        if self.mlp_alone is not None:
            return self.mlp_alone
        return self.full + self.sliding + self.chunked + self.state


def number_of_layers(read: ConfigValues) -> int:
    """As said, or as many as are listed (Nemotron 3 Ultra)."""
    keys = ("num_hidden_layers", "n_layer", "num_layers")
    listed = read.items("layers_block_type")
    if listed and all(read.values.get(key) is None for key in keys):
        return len(listed)
    return read.number(*keys)


def layer_kinds(read: ConfigValues, layers: int) -> LayerKinds:
    """Raises `BadInput` for a kind that is not understood, or another number of layers than there are."""
    if pattern := read.text("hybrid_override_pattern"):
        return _of_letters(read, pattern, layers)
    named = read.items("layer_types") or read.items("layers_block_type")
    if named:
        return _of_names(read, [str(kind) for kind in named], layers)
    if read.optional("linear_num_value_heads"):
        full = layers // (read.optional("full_attention_interval") or 4)
        return LayerKinds(full, state=layers - full)
    family = read.text("model_type")
    if family == "llama4_text" and read.optional("attention_chunk_size"):
        full = layers // _LLAMA4_INTERVAL
        return LayerKinds(full, chunked=layers - full)
    if states := [key for key in _STATE_KEYS if read.optional(key)]:
        raise read.refused(
            f"{states[0]} in config.json, and nothing that is read says which layers have a state"
        )
    return _of_window(read, layers, family)


def _of_window(read: ConfigValues, layers: int, family: str) -> LayerKinds:
    if not read.optional("sliding_window") or read.values.get("use_sliding_window") is False:
        return LayerKinds(layers)
    every = read.optional("sliding_window_pattern", "_sliding_window_pattern") or _INTERVALS.get(family, 0)
    full = layers // every if every else 0
    if read.flag("use_sliding_window"):  # Qwen 2: the layers below do not slide
        full = min(layers, read.optional("max_window_layers"))
    return LayerKinds(full, sliding=layers - full)


def _of_names(read: ConfigValues, names: list[str], layers: int) -> LayerKinds:
    if len(names) != layers:
        raise read.refused(f"layer_types has {len(names)} entries for num_hidden_layers {layers}")
    if strange := sorted(set(names) - _FULL - _SLIDING - _STATE - {"chunked_attention", _MLP, _EXPERTS}):
        raise read.refused(f"layers of the kind {', '.join(strange)} are not understood")
    if _MLP in names or _EXPERTS in names:  # Nemotron-H: a layer is one thing
        return _each_one_thing(*(names.count(kind) for kind in ("attention", "mamba", _MLP, _EXPERTS)))
    window = bool(read.optional("sliding_window"))
    sliding = sum(name in _SLIDING for name in names) if window else 0
    state, chunked = sum(name in _STATE for name in names), names.count("chunked_attention")
    return LayerKinds(layers - sliding - state - chunked, sliding, chunked, state)


def _of_letters(read: ConfigValues, pattern: str, layers: int) -> LayerKinds:
    """Nemotron-H: M a state, * attention, - an MLP, E experts."""
    if len(pattern) != layers or set(pattern) - set("M*-E"):
        raise read.refused(
            f"hybrid_override_pattern has {len(pattern)} letters for num_hidden_layers {layers}, "
            "or others than M, *, - and E"
        )
    return _each_one_thing(*(pattern.count(letter) for letter in "*M-E"))


def _each_one_thing(full: int, state: int, mlps: int, experts: int) -> LayerKinds:
    return LayerKinds(full, state=state, mlp_alone=mlps + experts, with_experts=experts)
