"""What the OpenVINO executor says about itself, and what it refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.plan import Chunk, Plan
from headrace.executor.models import ModelFiles
from headrace.executor.paged import PagedExecutor, load
from tests.executor.driving import answer, greedy, work

pytestmark = [pytest.mark.slow, pytest.mark.model]

PROMPT = tuple(range(1000, 1100))
WHOLE, CUT = (1, 2, 3, 4, 5), (6, 7, 8, 9, 10)


def test_a_block_costs_what_its_shape_says(paged: PagedExecutor) -> None:
    model = paged.model
    assert model.block_size == 32
    assert model.kv_bytes_per_block == 32 * 2 * 30 * 3 * 64 * 4
    assert model.vocab_size == 49_152
    assert 100e6 < model.files.weights_bytes < 110e6
    assert model.weights_bytes == 15 * model.files.weights_bytes, "with the forms that are faster"


@pytest.mark.parametrize(("dtype", "share"), [("f16", 0.5), ("u8", 0.3)])
def test_a_smaller_kv_type_takes_less_memory_and_still_answers(
    files: ModelFiles, paged: PagedExecutor, dtype: str, share: float
) -> None:
    model = load(files, dtype)
    assert model.kv_bytes_per_block / paged.model.kv_bytes_per_block == pytest.approx(share, abs=0.02)
    assert model.block_size == 32
    executor = PagedExecutor(model, 8)
    fresh = answer(executor, work("a", PROMPT, greedy(8), (1, 2, 3, 4)), 8)
    answer(executor, work("b", PROMPT[::-1], greedy(8), (4, 3, 2, 1)), 8)
    assert answer(executor, work("c", PROMPT, greedy(8), (1, 2, 3, 4)), 8) == fresh, (
        "blocks can be used again"
    )


def test_expanded_weights_say_what_packed_ones_say(files: ModelFiles, paged: PagedExecutor) -> None:
    """A prompt, a decode on its own (signed bytes) and one beside five others (float32)."""
    packed = PagedExecutor(load(files, expand_weights=False), 8)
    assert packed.model.weights_bytes == files.weights_bytes
    told: list[list[np.ndarray]] = []
    for executor in (paged, packed):
        chat = work("a", PROMPT, greedy(2), (1, 2, 3, 4))
        others = [Chunk(work(f"o{n}", PROMPT[n:9], greedy(1), (5,)), 0, 1, samples=False) for n in range(5)]
        said: list[np.ndarray] = []
        for chunks in (
            [Chunk(chat, 0, 98, samples=True)],
            [Chunk(chat, 98, 1, samples=True)],
            [Chunk(chat, 99, 1, samples=True), *others],
        ):
            executor.run(Plan(chunks=chunks))
            said.append(executor.logits().copy())
        told.append(said)
    for expanded, as_packed in zip(*told, strict=True):
        assert 0 < np.abs(expanded - as_packed).max() < 1e-3


@pytest.mark.parametrize("decodes", [0, 3])
def test_a_step_that_is_filled_up_to_even_tokens_says_the_same(paged: PagedExecutor, decodes: int) -> None:
    """131 tokens run as 136, the rest in the null block; cut in two, the same prompt runs as it is."""
    prompt = tuple(range(2000, 2131))
    others = [work(f"o{n}", PROMPT[:40], greedy(1), (20 + 2 * n, 21 + 2 * n)) for n in range(decodes)]
    for other in others:
        paged.run(Plan(chunks=[Chunk(other, 0, 39, samples=False)]))
    beside = [Chunk(other, 39, 1, samples=True) for other in others]
    whole, cut = (work(name, prompt, greedy(1), blocks) for name, blocks in (("w", WHOLE), ("c", CUT)))
    paged.run(Plan(chunks=[*beside, Chunk(whole, 0, 131, samples=True)]))
    at_once = paged.logits().copy()
    paged.run(Plan(chunks=[Chunk(cut, 0, 100, samples=False)]))
    paged.run(Plan(chunks=[*beside, Chunk(cut, 100, 31, samples=True)]))
    assert at_once.shape == (decodes + 1, paged.model.vocab_size)
    assert np.abs(at_once - paged.logits()).max() < 1e-3


def test_an_unknown_kv_type_is_refused_with_those_there_are(files: ModelFiles) -> None:
    with pytest.raises(BadInput, match="'fp8'; it can be auto, f32, f16, u8"):
        load(files, "fp8")


def test_more_blocks_than_there_is_memory_are_refused_with_the_size(paged: PagedExecutor) -> None:
    with pytest.raises(ModelUnusable, match="no memory for 1000000000000 KV blocks"):
        PagedExecutor(paged.model, 10**12)


def test_a_damaged_model_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    for source in files.folder.iterdir():
        (tmp_path / source.name).symlink_to(source)
    damaged = dataclasses.replace(files, folder=tmp_path)
    (tmp_path / "openvino_model.bin").unlink()
    (tmp_path / "openvino_model.bin").write_bytes(
        (files.folder / "openvino_model.bin").read_bytes()[: 1 << 20]
    )
    with pytest.raises(ModelUnusable, match="cannot run smollm2"):
        load(damaged)
    (tmp_path / "openvino_model.xml").unlink()
    (tmp_path / "openvino_model.xml").write_text("<net>")
    with pytest.raises(ModelUnusable, match="cannot run smollm2"):
        load(damaged)


def test_a_model_that_is_no_language_model_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    for suffix in (".xml", ".bin"):
        (tmp_path / f"openvino_model{suffix}").symlink_to(files.folder / f"openvino_detokenizer{suffix}")
    with pytest.raises(ModelUnusable, match="cannot run"):
        load(dataclasses.replace(files, folder=tmp_path))


def test_choosing_a_form_changes_no_answer(paged: PagedExecutor) -> None:
    """Which one is faster differs between machines and moments. Timing them touches nobody's blocks."""
    executor = PagedExecutor(paged.model, 8)
    chat = work("a", PROMPT, greedy(2), (1, 2, 3, 4))
    others = [Chunk(work(f"o{n}", PROMPT[n:9], greedy(1), (5,)), 0, 1, samples=False) for n in range(5)]
    beside = Plan(chunks=[Chunk(chat, 99, 1, samples=True), *others])
    executor.run(Plan(chunks=[Chunk(chat, 0, 99, samples=False)]))
    executor.run(beside)
    before = executor.logits().copy()
    executor.choose_form()
    executor.run(beside)
    assert np.abs(executor.logits() - before).max() < 1e-3
