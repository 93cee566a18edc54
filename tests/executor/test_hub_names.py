"""Names on a hub taken apart as vLLM and llama.cpp write them, and the choice among a repository's files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ModelUnusable
from headrace.executor.hub_names import (
    PREFERRED,
    HubName,
    RepositoryFile,
    choose,
    quantisation_of,
    read_hub_name,
)


def named(model: str) -> HubName:
    name = read_hub_name(model)
    assert name is not None, model
    return name


def chosen(model: str, *paths: str) -> str:
    return choose(named(model), [RepositoryFile(path, 1, "0" * 64) for path in paths])[0].path


@pytest.mark.parametrize(
    ("model", "repository", "quantisation", "file"),
    [
        ("unsloth/Qwen3-0.6B-GGUF", "unsloth/Qwen3-0.6B-GGUF", None, None),
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M", None),
        ("unsloth/Qwen3-0.6B-GGUF:UD-Q4_K_XL", "unsloth/Qwen3-0.6B-GGUF", "UD-Q4_K_XL", None),
        ("a/b/sub/dir/m.gguf", "a/b", None, "sub/dir/m.gguf"),
    ],
)
def test_a_name_is_taken_apart(
    model: str, repository: str, quantisation: str | None, file: str | None
) -> None:
    assert named(model) == HubName(model, repository, quantisation, file)


@pytest.mark.parametrize(
    "model", ["smollm2", "/a/b", "./a/b", "a/b/c", "a//b", "a/b:", "a/../b.gguf", "a/b/../c.gguf", ""]
)
def test_what_is_no_name_is_none(model: str) -> None:
    assert read_hub_name(model) is None


@pytest.mark.parametrize(
    ("path", "quantisation"),
    [
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("qwen2.5-7b-instruct-fp16-00001-of-00004.gguf", "F16"),
        ("BF16/Qwen3-32B-BF16-00001-of-00002.gguf", "BF16"),
        ("Qwen3-30B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("Q4_K_M.gguf", "Q4_K_M"),
        ("ggml-model.gguf", "other"),
    ],
)
def test_a_quantisation_is_read_from_a_file_name(path: str, quantisation: str) -> None:
    assert quantisation_of(path) == quantisation


def test_without_a_quantisation_the_one_that_is_read_exactly_is_taken() -> None:
    assert chosen("a/b", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert chosen("a/b", "m-Q2_K.gguf", "m-Q4_K_M.gguf") == "m-Q4_K_M.gguf"
    assert chosen("a/b", "README.md", "whatever.gguf") == "whatever.gguf"


def test_a_whole_file_goes_before_shards_and_a_model_before_its_companions() -> None:
    shards = [f"x/m-Q8_0-0000{part}-of-00002.gguf" for part in (1, 2)]
    assert chosen("a/b:Q8_0", *shards, "a-longer-name-Q8_0.gguf") == "a-longer-name-Q8_0.gguf"
    assert chosen("a/b:Q8_0", *shards) == shards[0]
    assert chosen("a/b", "mmproj-m-Q8_0.gguf", "m-Q4_0.gguf") == "m-Q4_0.gguf"


def test_nothing_that_could_be_read_is_told_with_what_could() -> None:
    with pytest.raises(ModelUnusable, match="of IQ4_XS, Q5_K_M; none that can be read") as caught:
        chosen("a/b", "m-IQ4_XS.gguf", "m-Q5_K_M.gguf")
    assert "Q8_0" in caught.value.hint


def test_ir_is_taken_whole_with_its_configuration_unless_a_quantisation_is_named() -> None:
    files = ["openvino_model.xml", "openvino_model.bin", "config.json", "README.md", "m-Q8_0.gguf"]
    ir = choose(named("a/b"), [RepositoryFile(path, 1, None) for path in files])
    assert [file.path for file in ir] == files[:3]
    assert chosen("a/b:Q8_0", *files) == "m-Q8_0.gguf"


@given(st.one_of(st.text(max_size=60), st.from_regex(r"[\w./:-]{1,40}", fullmatch=True)))
def test_any_text_is_a_name_or_none(text: str) -> None:
    name = read_hub_name(text)
    assert name is None or (name.given == text and text.startswith(name.repository))


@given(
    st.sampled_from(["a/b", "a/b:Q8_0", "a/b:zz", "a/b/m-Q8_0.gguf"]),
    st.lists(
        st.one_of(
            st.sampled_from([f"m-{quant}.gguf" for quant in PREFERRED]),
            st.from_regex(r"[a-zQ0-9_.-]{1,12}(\.gguf|\.xml|\.safetensors)?", fullmatch=True),
        ),
        max_size=8,
    ),
)
def test_whatever_is_there_one_of_it_is_chosen_or_the_refusal_says_what_to_do(
    model: str, paths: list[str]
) -> None:
    refused: list[ModelUnusable] = []
    path = ""
    try:
        path = chosen(model, *paths)
    except ModelUnusable as error:
        refused.append(error)
    assert path in paths or [bool(error.hint) for error in refused] == [True]
