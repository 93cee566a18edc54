"""Files that are there whole or not at all: no reader ever sees half of one."""

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import BadInput


def replace_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces` beside `path` and move them into place when all have come.

    Raises `BadInput` where nothing can be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", "does its folder exist?") from error
    finally:
        beside.unlink(missing_ok=True)
