"""The user's cache folder, and how something gets into it whole or not at all.

Every entry is made in a temporary folder beside its place and renamed into it, so that a process
which dies, or two that do the same at once, leave either nothing or the finished thing.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import ModelOutOfReach

MAKE_ROOM = "make room there, or name another folder: in HEADRACE_CACHE, for downloads from a hub in HF_HOME"


def cache_folder() -> Path:
    """`$HEADRACE_CACHE`, or `headrace` in the user's cache. Not created."""
    if own := os.environ.get("HEADRACE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "headrace"
    return Path.home() / ".cache" / "headrace"


def require_room(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raises `ModelOutOfReach` where `folder` has less room than that. It need not exist yet."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise ModelOutOfReach(
            f"{purpose} needs {needed_bytes:,} bytes in {folder}; {free:,} are free", MAKE_ROOM
        )


def put(place: Path, make: Callable[[Path], Path]) -> None:
    """Let `make` build in an empty temporary folder and move what it returns to `place`.

    What `place` held before is replaced. A folder that another process has put there meanwhile
    stays instead: it is as good, and may be in use already.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        before = _identity(place)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-") as temporary:
            made = make(Path(temporary))
            if made.is_file():
                made.replace(place)
            elif _identity(place) == before:
                _put_folder(made, place, Path(temporary) / "replaced")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelOutOfReach(
            f"cannot write {place}: {reason}",
            MAKE_ROOM,
        ) from error


def _put_folder(made: Path, place: Path, aside: Path) -> None:
    if place.exists():
        place.rename(aside)  # a folder cannot be renamed over one that has content
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was first, by a hair
            raise


def _identity(place: Path) -> int | None:
    return place.stat().st_ino if place.exists() else None
