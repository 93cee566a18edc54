"""Models from a hub, by name: which file is meant, is it here already, and else its download.

    ORG/NAME[:QUANT] --list--> files --choose--> file --is it cached?--> Found --get--> path, checked

`huggingface_hub` does the talking and owns the cache (`HF_HOME`, `HF_HUB_CACHE`), so that a file which
another program has fetched is not fetched again, and `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean
what they mean there. Its errors become ours here. Beyond what it does: room on the disk is looked at before a
download, and a large file is held against its sha256 after it.
"""

import difflib
import hashlib
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub as hf
from huggingface_hub import constants, errors, utils

from headrace.core.errors import BadInput, ModelOutOfReach, ModelUnusable
from headrace.executor.cache import MAKE_ROOM, require_room
from headrace.executor.gguf import refuse_architecture
from headrace.executor.hub_names import HubName, RepositoryFile, choose, shards_of
from headrace.executor.telling import say

# Else it would put into each request what it finds out about this machine, and ask for a list of programs to
# look for. It reads the variable when it is imported; here it holds however it was imported.
constants.HF_HUB_DISABLE_TELEMETRY = True

LIST_WITHIN_S = 15.0
CONNECT_WITHIN_S = 3.0
"""To be connected, not to be answered: a lost packet is sent again after 1 s, and then after 2."""
PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a name means just now. Nothing has been downloaded yet."""

    name: HubName
    revision: str
    files: tuple[RepositoryFile, ...]
    cached_in: Path | None
    """The snapshot, where the hub was not asked."""

    @property
    def is_gguf(self) -> bool:
        return self.files[0].path.endswith(".gguf")

    @property
    def sha256(self) -> str:
        """Of a GGUF file: what it contains, whatever it is called."""
        return self.files[0].sha256 or f"{self.name.repository}/{self.files[0].path}@{self.revision}"


def find(name: HubName, revision: str | None) -> Found:
    """Ask the hub, or where it cannot be asked the cache. Raises `BadInput` or `ModelUnusable`."""
    revision = revision or constants.DEFAULT_REVISION
    cached_in: Path | None = None
    try:
        with _translated(name, revision):
            info = hf.HfApi().model_info(
                name.repository, revision=revision, files_metadata=True, timeout=LIST_WITHIN_S
            )
            files = [
                RepositoryFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
                for each in info.siblings or ()
            ]
            architecture = (info.gguf or {}).get("architecture")
    except ModelOutOfReach as error:
        cached_in = _snapshot(name.repository, revision)
        if cached_in is None:
            raise
        if not constants.HF_HUB_OFFLINE:
            say(f"{error}; using what is in the cache")
        files = _cached_files(cached_in)
        architecture = None
    chosen = choose(name, files)
    if architecture and chosen[0].path.endswith(".gguf"):  # before gigabytes are downloaded
        refuse_architecture(name.given, architecture)
    if len(chosen) == 1 and (shards := shards_of(chosen[0].path)) > 1:
        raise ModelUnusable(
            f"{chosen[0].path} of {name.repository} is one of {shards} shards; only single files can be read",
            "name another quantisation, or join them: `llama-gguf-split --merge FIRST_SHARD OUTPUT.gguf`",
        )
    return Found(name, revision, tuple(chosen), cached_in)


def get(found: Found) -> Path:
    """The GGUF file, or the folder of the IR, in the hub's cache. Downloads what is missing."""
    if found.cached_in is not None:
        return found.cached_in / found.files[0].path if found.is_gguf else found.cached_in
    missing = [file for file in found.files if not _is_cached(found, file)]
    size = sum(file.size_bytes for file in missing)
    cache, purpose = Path(constants.HF_HUB_CACHE), f"the download of {found.name.given}"
    if missing:
        require_room(cache, size, purpose)
        say(f"downloading {found.name.given} ({size / 1e6:,.0f} MB, once) from {constants.ENDPOINT}")
    try:
        paths = [_download(found, file) for file in found.files]
    except ModelOutOfReach:
        require_room(cache, size, purpose)  # if that is why, the numbers are worth more than the reason
        raise
    for file in missing:
        _check(cache, paths[found.files.index(file)], file)
    return paths[0] if found.is_gguf else paths[0].parent


def config_of(name: HubName, revision: str | None) -> Path:
    """The config.json of a repository: a few kilobytes, whatever the weights.

    Beside it lies `hf_quant_config.json`, if the repository has one.
    """
    revision = revision or constants.DEFAULT_REVISION
    with _translated(name, revision):
        try:
            if not constants.HF_HUB_OFFLINE and not _answers_for(name.repository, revision):
                kept = hf.hf_hub_download(
                    name.repository, "config.json", revision=revision, local_files_only=True
                )
                say(f"{constants.ENDPOINT} does not answer; using what is in the cache")
                return Path(kept)
            path = Path(hf.hf_hub_download(name.repository, "config.json", revision=revision))
        except errors.RemoteEntryNotFoundError as error:
            raise ModelUnusable(
                f"{name.repository} has no config.json", "name the repository that it was converted from"
            ) from error
        except errors.LocalEntryNotFoundError as error:
            raise ModelOutOfReach(
                f"config.json of {name.repository} is not in the cache, and {constants.ENDPOINT} cannot be "
                "reached",
                "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; or give the path of a config.json",
            ) from error
        _try_download(name.repository, "hf_quant_config.json", revision)
        return path


def _answers_for(repository: str, revision: str) -> bool:
    """Asked once. The library asks six times of a hub that does not answer, which takes half a minute."""
    if not _connects():
        return False
    address = hf.hf_hub_url(repository, "config.json", revision=revision)
    try:
        hf.get_hf_file_metadata(address, timeout=LIST_WITHIN_S)
    except (httpx2.ConnectError, httpx2.TimeoutException):
        return False
    except errors.HfHubHTTPError as error:
        kept = hf.try_to_load_from_cache(repository, "config.json", revision=revision)
        if error.response.status_code < 500 or not isinstance(kept, str):
            raise
        return False
    return True


def _connects() -> bool:
    """Within `CONNECT_WITHIN_S`. In a thread left behind: nothing bounds how long a name is looked up,
    nor how many addresses are tried one after the other.
    """
    connected, ended = threading.Event(), threading.Event()

    def trace(event: str, _: object) -> None:
        if event == "connection.connect_tcp.complete":
            connected.set()
            ended.set()

    def ask() -> None:
        with suppress(httpx2.HTTPError, OSError):
            hf.get_session().head(constants.ENDPOINT, timeout=LIST_WITHIN_S, extensions={"trace": trace})
            connected.set()  # by a connection that was open already
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    ended.wait(CONNECT_WITHIN_S)
    return connected.is_set()


def _try_download(repository: str, file: str, revision: str) -> None:
    with suppress(errors.RemoteEntryNotFoundError, errors.LocalEntryNotFoundError):
        hf.hf_hub_download(repository, file, revision=revision)


def _is_cached(found: Found, file: RepositoryFile) -> bool:
    """Under the name that the hub's newest commit has for it."""
    place = hf.try_to_load_from_cache(found.name.repository, file.path, revision=found.revision)
    return isinstance(place, str) and (file.sha256 is None or Path(place).resolve().name == file.sha256)


def _download(found: Found, file: RepositoryFile) -> Path:
    with _translated(found.name, found.revision):
        return Path(
            hf.hf_hub_download(
                found.name.repository,
                file.path,
                revision=found.revision,
                tqdm_class=None if sys.stderr.isatty() else _Lines,
            )
        )


def _check(cache: Path, path: Path, file: RepositoryFile) -> None:
    """The library checks the length. What is wrong is removed, or it would be believed the next time."""
    if file.sha256 is None:
        return
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ModelOutOfReach(
            f"{file.path} came with a wrong checksum: sha256 {found}; the hub says {file.sha256}",
            f"try again; it was removed from {cache}",
        )


def _snapshot(repository: str, revision: str) -> Path | None:
    """The folder of what was downloaded of it earlier, whole or in part."""
    place = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    try:
        named = place / "refs" / revision
        commit = named.read_text().strip() if named.is_file() else revision
    except OSError:
        return None
    folder = place / "snapshots" / commit
    return folder if folder.is_dir() else None


def _cached_files(folder: Path) -> list[RepositoryFile]:
    """A large file is kept under its sha256, a small one under a shorter sum."""
    found: list[RepositoryFile] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kept_as = path.resolve().name
            sha256 = kept_as if len(kept_as) == 64 else None
            found.append(RepositoryFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256))
    return found


@contextmanager
def _translated(name: HubName, revision: str) -> Generator[None, None, None]:
    """The library's errors as ours."""
    where = f"{name.repository} on {constants.ENDPOINT}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelUnusable(
            f"{where} is gated: its owner wants to know who takes it",
            f"ask for access at {constants.ENDPOINT}/{name.repository}, then set HF_TOKEN to your token",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise BadInput(
            f"{where} has no revision {revision!r}", "leave --revision out for its main branch"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise BadInput(
            f"there is no {where}, or it is private; nor is {name.given} a path here", _near(name)
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelOutOfReach(
            f"{name.given} is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE, or give the path of a .gguf file",
        ) from error
    except (errors.HfHubHTTPError, httpx2.HTTPError, errors.HFValidationError) as error:
        raise _out_of_reach(where, error) from error
    except OSError as error:
        raise ModelOutOfReach(
            f"cannot write {constants.HF_HUB_CACHE}: {error.strerror or _first_line(error)}", MAKE_ROOM
        ) from error


def _out_of_reach(where: str, error: Exception) -> ModelOutOfReach:
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in {401, 403}:
        return ModelOutOfReach(
            f"{where}: access refused (HTTP {status})", "check HF_TOKEN: is it right, may it read?"
        )
    return ModelOutOfReach(
        f"cannot get {where}: {f'HTTP {status}' if status else _first_line(error)}",
        "check the network, HF_ENDPOINT and proxy settings, then try again; or give the path of a .gguf file",
    )


def _near(name: HubName) -> str:
    """What it might have been meant to be. Asking is worth a moment, and no error of its own."""
    hint = "check the name; a private one needs HF_TOKEN; or give the path of a .gguf file"
    try:
        found = [
            each.id for each in hf.HfApi().list_models(search=name.repository.rpartition("/")[2], limit=20)
        ]
    except (errors.HfHubHTTPError, httpx2.HTTPError, OSError):
        return hint
    near = difflib.get_close_matches(name.repository, found, n=3, cutoff=0.4)
    return f"did you mean {', '.join(near)}? Else {hint}" if near else hint


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


class _Lines(utils.tqdm):
    """Progress for a log: a line now and then instead of a bar that moves.

    The library would switch it off where there is no terminal.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(
            *args, **{**options, "disable": False, "mininterval": PROGRESS_EVERY_S, "leave": False}
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        del pos
        if self.n > 0 and msg != "":  # an empty one clears the bar at its end
            of = f" of {self.total / 1e6:,.0f}" if self.total else ""
            say(f"{self.n / 1e6:,.0f}{of} MB")
