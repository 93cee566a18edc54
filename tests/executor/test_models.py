"""What a user may call a model, and what happens with everything else."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadInput, HeadraceError, ModelUnusable
from headrace.executor import models
from headrace.executor.gguf import first_token_id, read_header
from headrace.executor.models import ModelFiles, locate

IR = [f"openvino_{part}.{kind}" for part in ("model", "tokenizer", "detokenizer") for kind in ("xml", "bin")]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if "model" not in request.keywords:
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    tensors: int = 1,
    data_bytes: int = 64,
    shape: tuple[int, ...] = (16,),
    kind: int = 0,
    **metadata: str | int | list[str],
) -> bytes:
    """A small but whole GGUF file: `tensors` of 16 numbers (floats), one behind the other."""
    body = struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(metadata))
    for key, value in metadata.items():
        body += text(key.replace("__", "."))
        if isinstance(value, str):
            body += struct.pack("<I", 8) + text(value)
        elif isinstance(value, bool):
            body += struct.pack("<I?", 7, value)
        elif isinstance(value, int):
            body += struct.pack("<II", 4, value)
        else:
            body += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    for number in range(tensors):
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        body += text(f"t{number}") + dimensions + struct.pack("<IQ", kind, number * 64)
    return body + bytes(-len(body) % 32) + bytes(data_bytes)


WHOLE = gguf(
    general__architecture="llama", tokens=["a", "b"], llama__context_length=4096, general__name="Tiny"
)


def test_the_header_of_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(WHOLE)
    header = read_header(path)
    assert (header.text("general.name"), header.count("llama.context_length"), header.tensors) == (
        "Tiny",
        4096,
        1,
    )


@pytest.mark.parametrize(
    ("metadata", "token_id"),
    [
        ({"add_bos_token": True, "bos_token_id": 7}, 7),
        ({"add_bos_token": False, "bos_token_id": 7, "model": "llama"}, None),
        ({"bos_token_id": 7, "model": "gpt2", "pre": "qwen2"}, None),
        ({"bos_token_id": 128000, "model": "gpt2", "pre": "llama-bpe"}, 128000),
        ({"model": "llama"}, 1),
        ({"bos_token_id": 0, "model": "llama"}, 0),
        ({"add_bos_token": True}, None),
        ({"add_bos_token": 1, "bos_token_id": 7}, None),
        ({"add_bos_token": True, "bos_token_id": "<s>"}, None),
    ],
)
def test_a_file_says_which_token_begins_every_text(
    tmp_path: Path, metadata: dict[str, str | int | bool], token_id: int | None
) -> None:
    path = tmp_path / "tiny.gguf"
    named = {f"tokenizer__ggml__{key}": value for key, value in metadata.items()}
    path.write_bytes(gguf(1, 64, (16,), 0, **named))
    assert first_token_id(read_header(path)) == token_id


@given(st.integers(0, len(WHOLE) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_is_called_cut_or_damaged(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(WHOLE[:length])
    with pytest.raises(ModelUnusable, match=r"cut off|damaged|not a GGUF"):
        read_header(path)


@given(st.integers(0, len(WHOLE) - 65), st.binary(min_size=1, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_lies_costs_an_error_at_most(tmp_path: Path, place: int, noise: bytes) -> None:
    path = tmp_path / "lies.gguf"
    path.write_bytes(WHOLE[:place] + noise + WHOLE[place + len(noise) :])
    with contextlib.suppress(ModelUnusable):
        read_header(path)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<4sIQQ", b"GGUF", 3, 1 << 62, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 62),
        struct.pack("<4sIQQ", b"GGUF", 99, 0, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1 << 60),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 60),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(100),
        struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + text("t") + struct.pack("<I", 1 << 31) + bytes(100),
        b"",
        b"PK\x03\x04" + bytes(100),
    ],
)
def test_absurd_claims_are_refused_at_once(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(body)
    with pytest.raises(ModelUnusable):
        locate(str(path))


@pytest.mark.parametrize(
    ("name", "body", "complaint"),
    [
        ("m-00001-of-00003.gguf", WHOLE, "one of 3 shards"),
        (
            "m.gguf",
            gguf(general__architecture="llama", split__count=2, llama__context_length=9),
            "one of 2 shards",
        ),
        ("m.gguf", gguf(general__name="x"), "does not name its architecture"),
        ("m.gguf", gguf(general__architecture="clip"), "no context length"),
        (
            "m.gguf",
            gguf(general__architecture="gemma2", gemma2__context_length=9),
            "architecture gemma2; OpenVINO GenAI reads GGUF files of llama, qwen2, qwen3",
        ),
        (
            "m.gguf",
            gguf(shape=(4, 4), kind=6, general__architecture="llama", llama__context_length=9),
            "weights of Q5_0, which",
        ),
        ("m.gguf", gguf(tensors=0, general__architecture="llama", llama__context_length=9), "0 tensors"),
        ("m.safetensors", b"\x10\0\0\0\0\0\0\0{}", "not a GGUF file"),
    ],
)
def test_a_file_that_cannot_be_run_says_why(tmp_path: Path, name: str, body: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(ModelUnusable, match=complaint) as caught:
        locate(str(tmp_path / name))
    assert caught.value.hint


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(WHOLE) - 9),
            st.one_of(
                st.sampled_from((0, 1, 1 << 31, 1 << 32, 1 << 60, (1 << 64) - 1)).map(
                    lambda n: struct.pack("<Q", n)
                ),
                st.binary(min_size=1, max_size=8),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, len(WHOLE)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_file_takes_no_memory_to_speak_of(
    tmp_path: Path, changes: list[tuple[int, bytes]], length: int
) -> None:
    body = bytearray(WHOLE)
    for place, noise in changes:
        body[place : place + len(noise)] = noise
    path = tmp_path / "hostile.gguf"
    path.write_bytes(body[:length] if length % 2 else body)
    tracemalloc.start()
    try:
        with contextlib.suppress(ModelUnusable):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes into would hang."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for path, kind in ((tmp_path / "pipe.gguf", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(ModelUnusable, match=f"{kind}, not a file"):
            locate(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "mine.gguf", tmp_path / "mine"):
        path.touch() if path.suffix else path.mkdir()
        path.chmod(0)
        with pytest.raises(ModelUnusable, match=r"cannot read .*Permission denied"):
            locate(str(path))


@pytest.mark.slow
def test_what_the_converter_refuses_or_dies_of_is_an_error_with_its_words(
    tmp_path: Path, empty_cache: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(WHOLE)
    with pytest.raises(ModelUnusable, match=r"cannot convert tiny\.gguf \(architecture llama\)"):
        locate(str(path))
    assert list((empty_cache / "ir").iterdir()) == [], "nothing half made is left"


@pytest.mark.parametrize(
    ("model", "message", "hint"),
    [
        ("smolm2", "no model or file", "did you mean smollm2"),
        ("SmolLM2", "no model or file", "did you mean smollm2"),
        ("/no/such/file.gguf", "no model or file", "smollm2"),
        ("", "no openvino_model.xml", "smollm2"),
        ("a\0b", "no ", "smollm2"),
        ("x" * 5000, "no ", "smollm2"),
        ("~nobody-here/x", "no ", "smollm2"),
    ],
)
def test_a_name_that_is_nothing_is_answered_with_what_would_be(model: str, message: str, hint: str) -> None:
    with pytest.raises(HeadraceError, match=message) as caught:
        locate(model)
    assert hint in caught.value.hint
    assert model == "" or isinstance(caught.value, BadInput)


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ([], "no openvino_model.xml", "smollm2"),
        (["model.safetensors", "config.json"], "PyTorch", "optimum-cli"),
        (["tiny.gguf"], "but tiny.gguf", "tiny.gguf"),
        (IR[:2], "lacks openvino_tokenizer.xml", "optimum-cli"),
        (IR, "config.json", "max_position_embeddings"),
    ],
)
def test_a_folder_that_cannot_be_run_says_what_to_do(
    tmp_path: Path, names: list[str], message: str, hint: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    with pytest.raises(ModelUnusable, match=message) as caught:
        locate(str(folder))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen2", "max_position_embeddings": 32768}, ("qwen2", 32768)),
        ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 8192}}, ("gemma3", 8192)),
        ({"model_type": "x"}, None),
        ({"max_position_embeddings": -5}, None),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": True}, None),
        ([1], None),
    ],
)
def test_a_folder_of_ir_is_described_by_its_config(
    tmp_path: Path, config: object, expected: tuple[str, int] | None
) -> None:
    for name in IR:
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text(json.dumps(config))
    if expected is None:
        with pytest.raises(ModelUnusable, match="context length"):
            locate(str(tmp_path))
        return
    found = locate(str(tmp_path))
    assert (found.architecture, found.max_model_len) == expected


@pytest.mark.slow
@pytest.mark.model
def test_a_conversion_is_done_once_and_again_when_it_was_damaged(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> Path:
        raise AssertionError("converted again")

    monkeypatch.setattr(models, "_convert", never)
    assert locate("smollm2") == files
    assert locate(str(files.folder)) == files


@pytest.mark.parametrize("name", ["openvino_model.bin", "openvino_tokenizer.xml"])
def test_a_conversion_with_one_flipped_bit_is_not_used(tmp_path: Path, name: str) -> None:
    """Its size was right, so it was served, and answered nonsense."""
    names = models.IR_PARTS
    for each in names:
        (tmp_path / each).write_bytes(b"as it was left")
    described = {
        "name": "tiny",
        "architecture": "llama",
        "max_model_len": 100,
        "first_token_id": 7,
        "sizes_bytes": {each: (tmp_path / each).stat().st_size for each in names},
        "crc32": {each: models._crc32(tmp_path / each) for each in names},
    }
    (tmp_path / "headrace.json").write_text(json.dumps(described))
    assert models._read_converted(tmp_path) == ModelFiles("tiny", tmp_path, "llama", 100, first_token_id=7)
    (tmp_path / name).write_bytes(b"as it was lefu")
    assert models._read_converted(tmp_path) is None


def test_a_conversion_that_does_not_know_how_texts_begin_is_done_again(tmp_path: Path) -> None:
    """Older ones did not note it, and completions of such models lacked their first token."""
    nothing = dict.fromkeys(models.IR_PARTS, 0)
    described = {"name": "tiny", "architecture": "llama", "max_model_len": 9, "sizes_bytes": nothing}
    described["crc32"] = nothing
    for each in nothing:
        (tmp_path / each).touch()
    (tmp_path / "headrace.json").write_text(json.dumps(described))
    assert models._read_converted(tmp_path) is None
    (tmp_path / "headrace.json").write_text(json.dumps({**described, "first_token_id": None}))
    assert models._read_converted(tmp_path) is not None


@pytest.mark.slow
def test_nothing_reports_to_anybody() -> None:
    """`import openvino` alone would send an event to an analytics server."""
    script = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('a connection was tried')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import headrace.executor.paged, headrace.executor.tokenizer, headrace.executor.convert\n"
        "import threading\n"
        "assert sys.modules['openvino_telemetry'] is None\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry.')]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
