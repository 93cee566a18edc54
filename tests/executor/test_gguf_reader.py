"""What OpenVINO GenAI's reader of GGUF files takes, tried on small ones, and what it does with damaged ones.

`executor/gguf.py` says beforehand what will be refused. A newer reader that takes more makes these fail.
"""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError, ModelUnusable
from headrace.executor.gguf import READABLE_TYPES, read_header
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from tests.executor import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def reader_takes(path: Path, folder: Path) -> bool:
    folder.mkdir()
    command = [sys.executable, "-m", "headrace.executor.convert", str(path), str(folder)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("kind", tiny_gguf.BLOCK)
def test_a_quantisation_is_refused_exactly_when_the_reader_would(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, kind)
    refused = read_header(path).unreadable_types
    assert refused == ([] if kind in READABLE_TYPES.values() else [kind])
    assert reader_takes(path, tmp_path / "ir") == (not refused)


def test_an_architecture_is_refused_that_the_reader_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, "Q8_0", "gemma2")
    with pytest.raises(ModelUnusable, match="architecture gemma2"):
        locate(str(path))
    assert not reader_takes(path, tmp_path / "ir")


def test_a_whole_small_model_is_read_with_its_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, "Q8_0")
    files = locate(str(path))
    assert (files.name, files.architecture, files.max_model_len) == ("tiny", "llama", 64)
    assert OpenVinoTokenizer(files).encode("ab") == [len(tiny_gguf._TOKENS) - 1]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_header_is_an_error_or_a_model_and_leaves_nothing_half_made(
    tmp_path: Path, empty_cache: Path, seed: int
) -> None:
    """The reader is C++ and may crash; that must be an error too."""
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, "Q8_0")
    body, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(3):
        place = chance.randrange(24, 10_000)
        body[place : place + 4] = chance.randbytes(4)
    path.write_bytes(body)
    with contextlib.suppress(HeadraceError):
        locate(str(path))
    assert not [left for left in empty_cache.rglob("*") if left.name.startswith(".making-")]
