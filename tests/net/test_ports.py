"""A port that is reserved goes to the server that asks for it, and to nobody else."""

import socket

import pytest

from headrace.net.ports import reserved_port


def listening(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_the_server_that_was_told_the_port_gets_it_while_it_is_held() -> None:
    with reserved_port() as port, listening(port) as server:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0):
            pass
        assert server.getsockname()[1] == port


def test_two_reservations_are_of_two_ports() -> None:
    with reserved_port() as one, reserved_port() as other:
        assert one != other


def test_a_port_that_is_taken_is_not_taken_again() -> None:
    with reserved_port() as port, listening(port), pytest.raises(OSError, match="in use"):
        listening(port)
