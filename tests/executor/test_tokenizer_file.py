"""A plain tokenizer.json: the tokens that the served model sees, and texts that are exact by it.

Reads the built-in model as `make vllm` lays it out for vLLM; the `tokenizers` library is an extra, and that
of vLLM's own environment will do.
"""

import json
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.ports import Chat, ChatMessage
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.executor.tokenizer_file import names_files, of_files
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest
from headrace.workload.vocabulary import Vocabulary, find_vocabulary

MODEL = Path(__file__).parents[2] / ".vllm" / "model"
THERE = [*(Path(__file__).parents[2] / ".vllm" / "lib").glob("python*/site-packages/tokenizers")]
needs_model = pytest.mark.skipif(
    not (MODEL / "tokenizer.json").exists(), reason="`make vllm` has not laid out the model"
)

PRINTED = st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]) | st.just("\n")
"""Of bytes that a vocabulary lacks, as control characters, OpenVINO makes a token, the library none."""
TEMPLATE = "<s>{{ messages[0].content }}"
DRAWN = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 70)), min_size=2, max_size=6)
"""Blocks that a request shares with the others, and tokens of its own."""


@pytest.fixture
def library(tmp_path: Path) -> Generator[None]:
    """`tokenizers` alone, and nothing else of vLLM's environment."""
    if find_spec("tokenizers") is not None:
        yield
        return
    if not THERE:
        pytest.skip("the library is not there")
    (tmp_path / "tokenizers").symlink_to(THERE[0].resolve())
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))


@pytest.fixture
def vocabulary(library: None) -> Vocabulary:
    return find_vocabulary(of_files(str(MODEL)), "SmolLM2's tokenizer.json")


@needs_model
@pytest.mark.model
@pytest.mark.usefixtures("library")
def test_its_tokens_are_those_of_the_model_that_is_served(tokenizer: OpenVinoTokenizer) -> None:
    """OpenVINO's reader of the same model is another program."""
    encode = of_files(str(MODEL / "tokenizer.json"))

    @given(st.text(PRINTED, max_size=60))
    def alike(message: str) -> None:
        chat = Chat((ChatMessage("user", message),))
        assert encode([message]) == [tokenizer.encode(tokenizer.apply_chat_template(chat))]

    alike()


@needs_model
def test_texts_have_exactly_the_tokens_and_share_exactly_the_blocks(vocabulary: Vocabulary) -> None:
    @given(DRAWN, st.integers(0, 99))
    def exact(drawn: list[tuple[int, int]], seed: int) -> None:
        requests = [
            TraceRequest(
                0.0,
                vocabulary.least_tokens + 16 * shared + own,
                5,
                prefix_ids=tuple(range(shared)),
                prefix_block_tokens=16 if shared else 0,
            )
            for shared, own in drawn
        ]
        made = vocabulary.encode(list(ExactTexts(vocabulary, seed).texts(requests)))

        assert [len(tokens) for tokens in made] == [each.prompt_tokens for each in requests]
        for (shared, _), tokens in zip(drawn, made, strict=True):
            for (others, _), other in zip(drawn, made, strict=True):
                both = 16 * min(shared, others)
                assert tokens[:both] == other[:both]

    exact()


@needs_model
@pytest.mark.usefixtures("library")
def test_a_file_that_is_cut_off_or_alone_is_refused_in_words(tmp_path: Path) -> None:
    whole = (MODEL / "tokenizer.json").read_text()
    path = tmp_path / "model" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text(whole)
    with pytest.raises(BadInput, match="says what a server puts around a message"):
        of_files(str(path))

    path.with_name("chat_template.jinja").write_text("{{ messages[0].content }}")
    assert len(of_files(str(path.parent))(["a"])[0]) == 1
    for broken in (whole[:-1000], "", "{}", "[1]", '{"model": 3}'):
        path.write_text(broken)
        with pytest.raises(ModelUnusable, match="is no tokenizer"):
            of_files(str(path))
    path.with_name("tokenizer_config.json").write_text("{")
    with pytest.raises(ModelUnusable, match="beside"):
        of_files(str(path))


@needs_model
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("template", [TEMPLATE, [{"name": "default", "template": TEMPLATE}]])
def test_an_older_model_has_its_template_in_the_configuration(template: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    config = {"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    from_template = of_files(str(tmp_path))(["word"])
    (tmp_path / "chat_template.jinja").unlink()

    assert of_files(str(tmp_path))(["word"]) == from_template
    assert len(from_template[0]) > 1


def test_a_folder_of_our_own_executor_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    assert names_files(str(tmp_path))
    assert names_files("tokenizer.json")
    (tmp_path / "openvino_tokenizer.xml").touch()
    assert not names_files(str(tmp_path))
    assert not names_files("smollm2")


def test_a_file_that_is_not_there_and_a_library_that_is_not_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="is not there"):
        of_files(str(tmp_path / "tokenizer.json"))

    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "chat_template.jinja").write_text("x")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput) as refused:
        of_files(str(tmp_path))
    assert refused.value.hint == "pip install 'headrace[tokenizers]'"
