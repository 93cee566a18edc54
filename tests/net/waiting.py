"""Waiting for something to become true, never for time to pass."""

import socket
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.005)


def read_past_first_event(connection: socket.socket) -> None:
    received = b""
    while b"data: " not in received:
        received += connection.recv(4096)
