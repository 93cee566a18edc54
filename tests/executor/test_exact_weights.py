"""The engine computes what a GGUF file says, for each quantisation that is read.

Held against a float32 forward pass in numpy of a model with one layer, whose weights are unpacked here,
number by number, as ggml's format has it. OpenVINO GenAI's own conversion fails this for F16, Q4_1, Q4_K
and Q6_K.
"""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from headrace.core.plan import Plan
from headrace.core.request import SamplingParams
from headrace.executor.exact_weights import restore
from headrace.executor.gguf import READABLE_ARCHITECTURES, READABLE_TYPES, read_header
from headrace.executor.models import locate
from headrace.executor.paged import PagedExecutor, load
from headrace.executor.tokenizer import OpenVinoTokenizer
from tests.executor import tiny_gguf
from tests.executor.driving import chunks_of, work

pytestmark = pytest.mark.slow

Floats = NDArray[np.float32]

TOKENS = [int(token) for token in np.random.default_rng(2).integers(0, 240, 40)]
ASKS = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
HEADS, WIDTH = tiny_gguf.HEADS, tiny_gguf.WIDTH


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def q4_0(block: bytes) -> list[float]:
    (scale,) = struct.unpack("<e", block[:2])
    return [scale * ((byte & 15) - 8) for byte in block[2:]] + [
        scale * ((byte >> 4) - 8) for byte in block[2:]
    ]


def q4_1(block: bytes) -> list[float]:
    scale, offset = struct.unpack("<2e", block[:4])
    lower, upper = [byte & 15 for byte in block[4:]], [byte >> 4 for byte in block[4:]]
    return [scale * integer + offset for integer in lower + upper]


def q8_0(block: bytes) -> list[float]:
    (scale,) = struct.unpack("<e", block[:2])
    return [scale * integer for integer in struct.unpack("<32b", block[2:])]


def q4_k(block: bytes) -> list[float]:
    scale, offset = struct.unpack("<2e", block[:4])
    packed, found = block[4:16], list[float]()
    for group in range(8):
        if group < 4:
            mine, my_offset = packed[group] & 63, packed[group + 4] & 63
        else:
            mine = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            my_offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        for byte in block[16 + group // 2 * 32 :][:32]:
            found.append(scale * mine * (byte >> 4 if group % 2 else byte & 15) - offset * my_offset)
    return found


def q6_k(block: bytes) -> list[float]:
    (scale,) = struct.unpack("<e", block[208:])
    scales, found = struct.unpack("<16b", block[192:208]), list[float]()
    for place in range(256):
        half, quarter, column = place // 128, place % 128 // 32, place % 32
        low = block[64 * half + 32 * (quarter % 2) + column] >> (quarter // 2 * 4) & 15
        high = block[128 + 32 * half + column] >> (2 * quarter) & 3
        found.append(scale * scales[place // 16] * ((low | high << 4) - 32))
    return found


def f16(block: bytes) -> list[float]:
    return list(struct.unpack("<e", block))


def f32(block: bytes) -> list[float]:
    return list(struct.unpack("<f", block))


UNPACK: dict[str, Callable[[bytes], list[float]]] = {
    "F32": f32, "F16": f16, "Q4_0": q4_0, "Q4_1": q4_1, "Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k,
}  # fmt: skip


def weights_of(path: Path) -> dict[str, Floats]:
    content, kinds = path.read_bytes(), {number: name for name, (number, _, _) in tiny_gguf.BLOCK.items()}
    found: dict[str, Floats] = {}
    for matrix in read_header(path).matrices:
        _, per_block, size = tiny_gguf.BLOCK[kinds[matrix.kind]]
        end = matrix.starts_at + matrix.rows * matrix.columns // per_block * size
        numbers: list[float] = []
        for place in range(matrix.starts_at, end, size):
            numbers += UNPACK[kinds[matrix.kind]](content[place : place + size])
        name = matrix.name.removesuffix(".weight").removeprefix("blk.0.").replace(".bias", "_bias")
        found[name] = np.array(numbers, np.float32).reshape(matrix.rows, matrix.columns)
    return found


def forward(tokens: list[int], weights: dict[str, Floats], rotated: Callable[[Floats], Floats]) -> Floats:
    """Logits of every position of a Llama with one layer; with biases a Qwen 2, with more norms a Qwen 3."""
    hidden = weights["token_embd"][tokens]
    normed = normalised(hidden, weights["attn_norm"])
    query, key, value = (
        by_head(normed @ weights[f"attn_{part}"].T + weights.get(f"attn_{part}_bias", 0)) for part in "qkv"
    )
    if "attn_q_norm" in weights:
        query, key = normalised(query, weights["attn_q_norm"]), normalised(key, weights["attn_k_norm"])
    scores = rotated(query) @ rotated(key).swapaxes(1, 2) / np.sqrt(np.float32(WIDTH // HEADS))
    scores[:, *np.triu_indices(len(tokens), 1)] = -np.inf
    mixed = softmax(scores) @ value
    hidden += mixed.swapaxes(0, 1).reshape(len(tokens), WIDTH) @ weights["attn_output"].T
    normed = normalised(hidden, weights["ffn_norm"])
    gate = normed @ weights["ffn_gate"].T
    hidden += (gate / (1 + np.exp(-gate)) * (normed @ weights["ffn_up"].T)) @ weights["ffn_down"].T
    return normalised(hidden, weights["output_norm"]) @ weights["token_embd"].T


def by_head(rows: Floats) -> Floats:
    return rows.reshape(len(rows), HEADS, -1).swapaxes(0, 1)


def normalised(rows: Floats, by: Floats) -> Floats:
    return (by * rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-5)).astype(np.float32)


def rotated_pairs(heads: Floats) -> Floats:
    """Neighbours are the two halves of a complex number: so Llama's rows are ordered in a GGUF file."""
    turned = _turned(heads[..., ::2] + 1j * heads[..., 1::2])
    return np.stack((turned.real, turned.imag), axis=-1).reshape(heads.shape).astype(np.float32)


def rotated_halves(heads: Floats) -> Floats:
    """The first half has the real parts, the second the others: Qwen's order, there as everywhere."""
    pairs = heads.shape[-1] // 2
    turned = _turned(heads[..., :pairs] + 1j * heads[..., pairs:])
    return np.concatenate((turned.real, turned.imag), axis=-1).astype(np.float32)


def _turned(pairs: NDArray[np.complexfloating]) -> NDArray[np.complex64]:
    speeds = 10000.0 ** (-np.arange(pairs.shape[-1]) / pairs.shape[-1])
    turns = np.exp(1j * np.outer(np.arange(pairs.shape[1]), speeds))
    return (pairs * turns).astype(np.complex64)


def softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)


def logprobs_of_prompt(executor: PagedExecutor, tokens: list[int]) -> Floats:
    asking = work("asks", tokens, ASKS, range(1, 4))
    found = executor.run(Plan(chunks=chunks_of(asking, len(tokens)))).prompt_logprobs
    executor.forget(asking)  # the executor is every test's
    assert found is not None
    return np.array([each.logprob for each in found[0]], np.float32)


@pytest.mark.parametrize("architecture", READABLE_ARCHITECTURES)
@pytest.mark.parametrize("kind", READABLE_TYPES.values())
@pytest.mark.usefixtures("own_cache")
def test_log_probabilities_are_those_of_the_numbers_in_the_file(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, kind, architecture)
    logits = forward(TOKENS, weights_of(path), rotated_pairs if architecture == "llama" else rotated_halves)
    expected = np.log(softmax(logits[:-1])[np.arange(len(TOKENS) - 1), TOKENS[1:]])
    assert expected.std() > 0.3, "else any weights would do"
    executor = PagedExecutor(load(locate(str(path))), num_blocks=8)
    np.testing.assert_allclose(logprobs_of_prompt(executor, TOKENS), expected, atol=2e-4)


@pytest.mark.model
def test_the_built_in_model_answers_as_its_file_says(
    paged: PagedExecutor, tokenizer: OpenVinoTokenizer
) -> None:
    """Against `transformers` in float32 on the unpacked weights of the same file. As OpenVINO GenAI converts
    it, the prompt came out 600 times less likely.
    """
    tokens = tokenizer.encode("The capital of France is Paris, and the capital of Italy is")
    expected = [-11.5393, -0.3376, -2.4387, -0.4509, -0.2581, -1.6585, -1.2418, -1.0480, -0.5156, -1.1032,
                -2.7082, -0.0191]  # fmt: skip
    np.testing.assert_allclose(logprobs_of_prompt(paged, tokens), expected, atol=3e-4)


def test_weights_of_another_file_are_an_error(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    tiny_gguf.write(one, "Q4_0")
    tiny_gguf.write(other, "Q4_0", seed=2)
    folder = tmp_path / "ir"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "headrace.executor.convert", str(one), str(folder)], check=True)
    model = ov.Core().read_model(folder / "openvino_model.xml")
    with pytest.raises(ValueError, match="the file has no weights"):
        restore(model, other, read_header(other))
