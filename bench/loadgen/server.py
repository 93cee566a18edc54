"""A scripted server in a process of its own: a known TTFT, a known gap, and a log of what it did.

    server.py PORT TTFT_S ITL_S      prints "ready" once it listens

    POST …/chat/completions   max_tokens events, one write each; its number is its prompt's first word
    GET /log                  [[number, read_at, first_write_at, last_write_at], ...] since the last one
    GET /cpu                  seconds of processor time that it has used
    GET /stall/SECONDS        answers, then the whole process stands still for so long

Instants are of the machine's monotonic clock, which client and server share. Requests are told apart by
a search in their bytes instead of a parser: what is measured is the client beside it.
"""

import asyncio
import gc
import json
import re
import sys
import time

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
NUMBER = re.compile(rb'"content": *"(\d+)')
MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
START = (
    b'{"id":"chatcmpl-8d2c1f6b7a","object":"chat.completion.chunk","created":1764000000,"model":"scripted",'
)


def chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


ROLE = chunk(
    START + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
)
TOKEN = chunk(START + b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}')
LAST = chunk(START + b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":"length"}]}')
DONE = chunk(b"[DONE]") + b"0\r\n\r\n"


def usage(tokens: int) -> bytes:
    counts = b'"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}' % (tokens, tokens + 5)
    return chunk(START + b'"choices":[],' + counts)


class Connection(asyncio.Protocol):
    """Serves one request after the other."""

    def __init__(self, ttft_s: float, itl_s: float, log: list[tuple[int, float, float, float]]) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._read_at = self._first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self._read_at = time.monotonic()
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = LENGTH.search(self._received, 0, end)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= whole:
            request, self._received = self._received[:whole], self._received[whole:]
            self._serve(request, request[end + 4 :])

    def _serve(self, request: bytes, body: bytes) -> None:
        method, path, _ = request.split(b" ", 2)
        if method == b"POST" and not path.endswith(b"/chat/completions"):
            self._reply("{}", b"404 Not Found")
        elif method == b"POST":
            number = NUMBER.search(body)
            limit = MAX_TOKENS.search(body)
            self._transport.write(HEAD)
            self._loop.call_at(
                self._read_at + self._ttft_s,
                self._token,
                int(number[1]) if number else -1,
                0,
                int(limit[1]) if limit else 16,
            )
        elif path == b"/log":
            self._reply(json.dumps(self._log))
            self._log.clear()
        elif path == b"/cpu":
            self._reply(json.dumps(time.process_time()))
        elif path.startswith(b"/stall/"):
            self._reply("{}")
            self._loop.call_soon(time.sleep, float(path.rpartition(b"/")[2]))
        else:
            self._reply('{"object":"list","data":[{"id":"scripted","object":"model"}]}')

    def _reply(self, text: str, status: bytes = b"200 OK") -> None:
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
        self._transport.write(b"HTTP/1.1 %b\r\n%b%b" % (status, fields, text.encode()))

    def _token(self, number: int, place: int, tokens: int) -> None:
        if self._transport.is_closing():
            return
        now = time.monotonic()
        if place == 0:
            # With the token, as vLLM does: some clients take the role for the first token.
            self._transport.write(ROLE)
            self._first_at = now
        if place + 1 < tokens:
            self._transport.write(TOKEN)
            if self._itl_s:
                due_at = self._first_at + (place + 1) * self._itl_s
                self._loop.call_at(due_at, self._token, number, place + 1, tokens)
            else:
                self._loop.call_soon(self._token, number, place + 1, tokens)
            return
        self._transport.write(LAST)
        self._transport.write(usage(tokens) + DONE)
        self._log.append((number, self._read_at, self._first_at, now))


async def main(port: int, ttft_s: float, itl_s: float) -> None:
    log: list[tuple[int, float, float, float]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(ttft_s, itl_s, log), "127.0.0.1", port, backlog=4096)
    gc.freeze()
    gc.disable()  # a pause of the server would be taken for an error of the client
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
