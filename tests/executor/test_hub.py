"""A model by its name on a hub, and every way in which that fails. The hub is a real server on loopback."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub import constants

from headrace.core.errors import BadInput, HeadraceError, ModelOutOfReach, ModelUnusable
from headrace.executor import hub, models
from headrace.executor.fetch import SMOLLM2
from headrace.executor.hub import find, get
from headrace.executor.hub_names import read_hub_name
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from tests.executor.hub_stand_in import COMMIT, Hub, running

GGUF = b"GGUF" + bytes(range(256)) * 4096
TINY = "org/tiny-GGUF"
IR = {
    f"openvino_{part}.{kind}": b"x"
    for part in ("model", "tokenizer", "detokenizer")
    for kind in ("xml", "bin")
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub, None, None]:
    repositories = {
        TINY: {"README.md": b"#", "tiny-Q4_K_M.gguf": b"GGUF small", "tiny-Q8_0.gguf": GGUF},
        "org/torch-only": {"config.json": b"{}", "model.safetensors": b"weights"},
        "org/nothing": {"README.md": b"#"},
        "org/ir": {**IR, "config.json": b'{"model_type": "llama", "max_position_embeddings": 99}'},
        "org/shards": {f"big-Q8_0-0000{part}-of-00002.gguf": GGUF for part in (1, 2)},
        "org/gated": {"m-Q8_0.gguf": GGUF},
    }
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "")
    with running(Hub(repositories, gated={"org/gated"})) as up:
        monkeypatch.setattr(constants, "ENDPOINT", up.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", up.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield up


def fetched(model: str, revision: str | None = None) -> Path:
    name = read_hub_name(model)
    assert name is not None
    return get(find(name, revision))


def left_in(folder: Path) -> list[str]:
    """Files that hold something, in the hub's cache."""
    return [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 300]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (TINY, GGUF),
        (f"{TINY}:Q4_K_M", b"GGUF small"),
        (f"{TINY}:q8_0", GGUF),
        (f"{TINY}/tiny-Q4_K_M.gguf", b"GGUF small"),
    ],
)
def test_a_name_gives_the_file_that_it_means(stand_in: Hub, model: str, expected: bytes) -> None:
    assert fetched(model).read_bytes() == expected


def test_it_is_downloaded_once_and_found_again_by_any_revision(
    stand_in: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    first = fetched(TINY)
    told = capfd.readouterr()
    assert f"headrace: downloading {TINY} (1 MB, once) from {stand_in.url}" in told.err
    assert told.out == ""
    assert fetched(TINY) == first
    assert fetched(TINY, COMMIT) == first
    assert len(stand_in.downloads()) == 1
    assert not [line for line in stand_in.asked if "/org/" not in line], "nobody asks for anything else"
    assert "downloading" not in capfd.readouterr().err


def test_a_log_gets_lines_now_and_then(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library's bars say nothing at all where there is no terminal."""
    monkeypatch.setattr(hub, "PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 400_000)
    fetched(TINY)
    told = [line for line in capfd.readouterr().err.splitlines() if " of " in line]
    assert told[:2] == ["headrace: 0 of 1 MB", "headrace: 1 of 1 MB"]


def test_the_converted_model_is_called_as_it_was_named(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one file under two names is converted once."""
    converted: list[str] = []

    def convert(path: Path, temporary: Path, files: models.ModelFiles) -> Path:
        converted.append(path.name)
        folder = temporary / "ir"
        folder.mkdir()
        for name in IR:
            (folder / name).write_bytes(b"x")
        models.describe_conversion(folder, files)
        return folder

    described = models.ModelFiles("tiny", Path(), "llama", 100)
    monkeypatch.setattr(models, "_convert", convert)
    monkeypatch.setattr(models, "read_header", Mock(return_value=models.GgufHeader({}, 1, frozenset(), ())))
    monkeypatch.setattr(models, "_describe", Mock(return_value=described))
    named = [locate(model).name for model in (TINY, f"{TINY}:Q8_0")]
    assert named == [TINY, f"{TINY}:Q8_0"]
    assert converted == ["tiny-Q8_0.gguf"]


def test_a_repository_of_openvino_ir_just_works(stand_in: Hub) -> None:
    found = locate("org/ir")
    assert (found.name, found.architecture, found.max_model_len) == ("org/ir", "llama", 99)
    assert {path.name for path in found.folder.iterdir()} == {*IR, "config.json"}


@pytest.mark.parametrize(
    ("model", "kind", "message", "hint"),
    [
        ("org/tiny-GUFF", BadInput, "there is no org/tiny-GUFF on http", f"did you mean {TINY}"),
        ("org/torch-only", ModelUnusable, "only weights for PyTorch", "torch-only-GGUF"),
        ("org/nothing", ModelUnusable, "neither a GGUF file nor openvino_model.xml", "-GGUF"),
        ("org/shards", ModelUnusable, "one of 2 shards", "llama-gguf-split --merge"),
        (f"{TINY}:Q5_K_M", ModelUnusable, "no GGUF file of Q5_K_M; it has Q4_K_M, Q8_0", f"{TINY}:Q4_K_M"),
        (f"{TINY}/tiny-Q8.gguf", ModelUnusable, "has no file tiny-Q8.gguf", f"{TINY}/tiny-Q8_0.gguf"),
        ("org/gated", ModelUnusable, "is gated", "HF_TOKEN"),
    ],
)
def test_a_name_that_gives_nothing_says_why_and_what_would(
    stand_in: Hub, model: str, kind: type[HeadraceError], message: str, hint: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        locate(model)
    assert hint in caught.value.hint
    assert stand_in.downloads() == []


def test_an_unknown_revision_is_told(stand_in: Hub) -> None:
    with pytest.raises(BadInput, match="no revision 'v9'"):
        locate(TINY, "v9")
    assert fetched(TINY, "v1").read_bytes() == GGUF


def test_a_revision_of_a_local_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not from a hub"):
        locate("smollm2", "v1")


def test_a_token_opens_a_gated_repository_and_a_wrong_one_does_not(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelUnusable, match="gated"):
        fetched("org/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert fetched("org/gated").read_bytes() == GGUF


def test_what_the_hub_says_of_the_architecture_saves_the_download(stand_in: Hub) -> None:
    stand_in.architecture = "gemma3"
    with pytest.raises(ModelUnusable, match="architecture gemma3"):
        locate(TINY)
    assert stand_in.downloads() == []


@pytest.mark.slow
def test_a_download_that_breaks_goes_on_where_it_stopped(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    stand_in.drops_after = [300_000, 400_000]
    assert fetched(TINY).read_bytes() == GGUF
    ranges = [line.rpartition("bytes=")[2] for line in stand_in.downloads()]
    assert ranges[1:] == ["300000-", "700000-"]


def test_a_wrong_checksum_is_told_with_both_sums_and_the_file_is_gone(stand_in: Hub, tmp_path: Path) -> None:
    stand_in.serves["tiny-Q8_0.gguf"] = GGUF[:-1] + b"?"
    with pytest.raises(ModelOutOfReach, match=r"wrong checksum: sha256 \w{64}; the hub says \w{64}"):
        fetched(TINY)
    assert left_in(tmp_path / "hub") == []
    stand_in.serves.clear()
    assert fetched(TINY).read_bytes() == GGUF


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_hub_that_refuses_is_out_of_reach_with_its_status(stand_in: Hub, status: int) -> None:
    stand_in.status = status
    with pytest.raises(HeadraceError, match=rf"HTTP {status}|is no {TINY}"):
        fetched(TINY)


def test_without_a_network_what_is_in_the_cache_is_served(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = fetched(TINY)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetched(TINY) == first
    assert "using what is in the cache" in capfd.readouterr().err
    with pytest.raises(ModelUnusable, match="no GGUF file of Q4_K_M; it has Q8_0"):
        fetched(f"{TINY}:Q4_K_M")
    with pytest.raises(ModelOutOfReach, match=r"cannot get org/ir on http://127\.0\.0\.1:9: .*refused"):
        fetched("org/ir")


def test_offline_nobody_is_asked(stand_in: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetched(TINY)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    stand_in.asked.clear()
    assert fetched(TINY) == first
    with pytest.raises(ModelOutOfReach, match=r"org/ir is not in the cache .* HF_HUB_OFFLINE is set"):
        fetched("org/ir")
    assert stand_in.asked == []


def test_too_little_room_is_told_with_the_numbers_before_anything_is_sent(
    stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=Mock(free=1000)))
    with pytest.raises(ModelOutOfReach, match=rf"needs {len(GGUF):,} bytes in .*; 1,000 are free"):
        fetched(TINY)
    assert stand_in.downloads() == []


def test_a_disk_that_fills_while_it_is_written_leaves_nothing(
    stand_in: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hub.hf, "hf_hub_download", full)
    with pytest.raises(ModelOutOfReach, match=r"cannot write .*: No space left on device") as caught:
        fetched(TINY)
    assert "HF_HOME" in caught.value.hint
    assert left_in(tmp_path / "hub") == []


@pytest.mark.slow
def test_the_environment_says_where_the_hub_and_its_cache_are(stand_in: Hub, tmp_path: Path) -> None:
    """As a user sets it, through the command: an error of the file itself shows that it came."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": stand_in.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_right",
    }
    command = [sys.executable, "-m", "headrace", "serve", "org/gated", "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "headrace: downloading org/gated (1 MB, once)" in done.stderr
    assert "is damaged" in done.stderr or "GGUF version" in done.stderr
    assert "\r" not in done.stderr, "lines, where nobody sees a bar move"
    assert list((tmp_path / "home" / "hub").glob("models--org--gated/blobs/*"))


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_comes_from_a_hub_and_is_converted_once(stand_in: Hub, tmp_path: Path) -> None:
    kept = Path.home() / ".cache" / "headrace" / "models" / Path(SMOLLM2.member).name
    if not kept.is_file():
        pytest.skip("the built-in model has not been fetched into the user's own cache")
    stand_in.repositories["org/SmolLM2-GGUF"] = {"SmolLM2-135M-Instruct.Q4_1.gguf": kept.read_bytes()}
    files = locate("org/SmolLM2-GGUF")
    assert (files.name, files.max_model_len) == ("org/SmolLM2-GGUF", 8192)
    tokenizer = OpenVinoTokenizer(files)
    assert tokenizer.decode(tokenizer.encode("Hello, world!")) == "Hello, world!"
    shutil.rmtree(tmp_path / "hub")
    assert locate("smollm2").folder == files.folder, "the same file by another name"
    (files.folder / "openvino_model.bin").write_bytes(b"damaged")
    again = locate("org/SmolLM2-GGUF:Q4_1")
    assert again.weights_bytes > 9e7, "fetched and converted again"
    assert len(stand_in.downloads()) == 2
