"""A whole GGUF file of a language model with one layer, small enough to be made in a test."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

WIDTH = 256  # K-quantisations come in blocks of 256
HEADS = 4
BLOCK = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2),
}  # fmt: skip
"""The type's number, how many numbers a block has, and how many bytes."""

_SCALES = {
    "Q4_0": {0: 0.01}, "Q4_1": {0: 0.01, 2: -0.075}, "Q8_0": {0: 0.0007}, "Q4_K": {0: 0.0003, 2: 0.0025},
    "Q6_K": {208: 0.00005},
}  # fmt: skip
"""Where a block has numbers of 16 bits, and which make weights of about 0.05."""

_LETTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
_TOKENS = [*_LETTERS, *(chr(256 + place) for place in range(68)), "<|start|>", "<|end|>", "ab"]


def write(path: Path, kind: str, architecture: str = "llama", seed: int = 1) -> None:
    """Weights are noise, a few groups all the same number; vectors are plain floats, as in all such files.

    A model of `architecture` has what it is known for: qwen2 biases, qwen3 norms of queries and keys.
    """
    metadata = b"".join(_metadata(architecture))
    keys = len(list(_metadata(architecture)))
    head, data = b"", b""
    shapes = dict(_shapes(architecture))
    for name, shape in shapes.items():
        number, per_block, block_bytes = BLOCK[kind if len(shape) > 1 else "F32"]
        numbers = shape[0] * (shape[1] if len(shape) > 1 else 1)
        chance = random.Random(f"{seed} {name}")
        content = _noise(kind if len(shape) > 1 else "F32", numbers // per_block, block_bytes, chance)
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", number, len(data))
        data += content + bytes(-len(content) % 32)
    start = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), keys) + metadata + head
    path.write_bytes(start + bytes(-len(start) % 32) + data)


def _shapes(architecture: str) -> Iterator[tuple[str, list[int]]]:
    yield "token_embd.weight", [WIDTH, len(_TOKENS)]
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        yield f"blk.0.{part}.weight", [WIDTH, WIDTH]
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        yield f"{name}.weight", [WIDTH]
    if architecture == "qwen2":
        for part in "qkv":
            yield f"blk.0.attn_{part}.bias", [WIDTH]
    if architecture == "qwen3":
        for part in "qk":
            yield f"blk.0.attn_{part}_norm.weight", [WIDTH // HEADS]


def _noise(kind: str, blocks: int, block_bytes: int, chance: random.Random) -> bytes:
    if kind == "F32":
        return struct.pack(f"<{blocks}f", *(chance.uniform(0.5, 1.5) for _ in range(blocks)))
    if kind == "F16":
        return struct.pack(f"<{blocks}e", *(chance.uniform(-0.1, 0.1) for _ in range(blocks)))
    content = bytearray(chance.randbytes(blocks * block_bytes))
    for block in range(0, len(content), block_bytes):
        for place, usual in _SCALES.get(kind, {}).items():
            number = usual * chance.uniform(0.5, 1.5) * (place > 0 or chance.random() > 0.02)
            content[block + place : block + place + 2] = struct.pack("<e", number)
    return bytes(content)


def _metadata(architecture: str) -> Iterator[bytes]:
    yield _pair("general.architecture", architecture)
    yield _pair("general.file_type", 2)
    for name, count in {
        "block_count": 1, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
        "attention.key_length": WIDTH // HEADS,
    }.items():  # fmt: skip
        yield _pair(f"{architecture}.{name}", count)
    yield _pair(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    yield _pair(f"{architecture}.rope.freq_base", 10000.0)
    yield _pair("tokenizer.ggml.model", "gpt2")
    yield _pair("tokenizer.ggml.pre", "smollm")
    yield (
        _text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(_TOKENS))
        + b"".join(map(_text, _TOKENS))
    )
    kinds = [3 if token.startswith("<|") else 1 for token in _TOKENS]
    yield _text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
    yield _text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + _text("a b")
    yield _pair("tokenizer.ggml.bos_token_id", _TOKENS.index("<|start|>"))
    yield _pair("tokenizer.ggml.eos_token_id", _TOKENS.index("<|end|>"))
    yield _pair("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")


def _pair(key: str, value: str | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", 8) + _text(value)
    return _text(key) + (
        struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    )


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
