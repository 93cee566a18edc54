"""A port for a server that must be told one."""

import socket
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str = "127.0.0.1") -> Generator[int]:
    """A port that the kernel gives to nobody else meanwhile; a server that asks for just this one gets it.

    Linux lets several sockets share an address as long as none but one listens, if all have SO_REUSEADDR,
    as servers' do.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        yield held.getsockname()[1]
