"""A server on the loopback that answers chat completions exactly as badly as a test wants.

Speaks raw HTTP, so that it can break off wherever it likes. Runs in a thread of its own.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

ABSENT = ("/metrics", "/tokenize")
MODELS = {"object": "list", "data": [{"id": "awkward"}]}


class Exchange:
    """One request, and the means to answer it. Without a Content-Length the body ends with the connection."""

    def __init__(self, request_head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.request_head = request_head
        """In lower case."""
        self.path = request_head.split()[1]
        self.body = body
        self._writer = writer

    @property
    def max_tokens(self) -> int:
        return self.body["max_tokens"]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def reset(self) -> None:
        """Break the connection off, as a process does that is killed."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def head(self, status: str = "200 OK", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", *(headers or ("Content-Type: text/event-stream",)), "", ""]
        await self.send("\r\n".join(lines).encode())

    async def event(self, data: object) -> None:
        await self.send(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

    async def role(self) -> None:
        await self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})

    async def text(self, content: str, finish_reason: str | None = None) -> None:
        await self.event({"choices": [{"delta": {"content": content}, "finish_reason": finish_reason}]})

    async def usage(self, completion_tokens: object, **more: object) -> None:
        words = len(self.body["messages"][0]["content"].split())
        usage = {"prompt_tokens": words, "completion_tokens": completion_tokens, **more}
        await self.event({"choices": [], "usage": usage})

    async def json(self, status: str, answer: object, *headers: str) -> None:
        body = json.dumps(answer).encode()
        await self.head(status, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers)
        await self.send(body)


Behaviour = Callable[[Exchange], Awaitable[None]]


async def answer_well(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.role()
    for number in range(exchange.max_tokens):
        is_last = number == exchange.max_tokens - 1
        await exchange.text("word ", "length" if is_last else None)
    await exchange.usage(exchange.max_tokens)
    await exchange.event("[DONE]")


@contextmanager
def awkward_server(
    behave: Behaviour,
    models: object = MODELS,
    tls: ssl.SSLContext | None = None,
    absent: tuple[str, ...] = ABSENT,
) -> Generator[str, None, None]:
    """Gives the address. Every chat completion is answered by `behave`, and all else that is not `absent`."""
    server = _Server(behave, models, tls, absent)
    thread = threading.Thread(target=server.run, name="awkward")
    thread.start()
    try:
        assert server.started.wait(10), "the server did not start"
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive(), "the server did not end"


class _Server:
    def __init__(
        self, behave: Behaviour, models: object, tls: ssl.SSLContext | None, absent: tuple[str, ...]
    ) -> None:
        self.started = threading.Event()
        self.port = 0
        self._behave = behave
        self._models = models
        self._tls = tls
        self._absent = absent
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1000, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self.started.set()
        await self._ended.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            _, _, length = head.partition("content-length: ")
            body = await reader.readexactly(int(length.split("\r\n")[0])) if length else b"{}"
            exchange = Exchange(head, json.loads(body), writer)
            if exchange.path == "/v1/models":
                await exchange.json("200 OK", self._models)
            elif exchange.path == "/version":
                await exchange.json("200 OK", {"version": "1.2.3"})
            elif exchange.path in self._absent:
                await exchange.json("404 Not Found", {"detail": "none"})
            else:
                await self._behave(exchange)
        writer.close()
