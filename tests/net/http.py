"""The smallest possible client: what goes over the wire is what the test says, right or wrong."""

import json
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]["message"]

    @property
    def events(self) -> list[Any]:
        """The streamed events; `[DONE]` comes as text."""
        data = re.findall(r"^data: (.*)$", self.body.decode(), re.MULTILINE)
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def text(self) -> str:
        """All text of a streamed answer."""
        choices = [event["choices"][0] for event in self.events[:-1] if event.get("choices")]
        return "".join(c["delta"]["content"] if "delta" in c else c["text"] for c in choices)


def post(port: int, path: str, body: Any, **headers: str) -> Answer:
    """Send `body`, as it is if it is bytes, and read the whole answer."""
    with posted(port, path, body, **headers) as connection:
        return read_answer(connection)


def get(port: int, path: str) -> Answer:
    with connected(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return read_answer(connection)


@contextmanager
def connected(port: int) -> Generator[socket.socket, None, None]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        yield connection


@contextmanager
def posted(port: int, path: str, body: Any, **headers: str) -> Generator[socket.socket, None, None]:
    """A connection on which a request has just been sent."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n{lines}\r\n"
    )
    with connected(port) as connection:
        connection.sendall(head.encode() + raw)
        yield connection


def read_answer(connection: socket.socket) -> Answer:
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(lines[0].split()[1]), headers, body)


def _joined(chunked: bytes) -> bytes:
    body = b""
    while chunked:
        size, _, chunked = chunked.partition(b"\r\n")
        length = int(size, 16)
        body, chunked = body + chunked[:length], chunked[length + 2 :]
    return body
