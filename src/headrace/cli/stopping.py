"""SIGTERM as Ctrl-C: what a command has begun is cleaned up, whoever stops it.

By default SIGTERM ends Python at once: child processes run on, temporary folders stay.
"""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_like_interrupted() -> Generator[None, None, None]:
    """Inside, SIGTERM does what Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's script starts what ends in `&`
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
