"""The client's side of the wire: asks an OpenAI-compatible server, times what comes back.

    Ask -> HttpSender.send -> POST /v1/chat/completions, streamed -> Answer | Broken

Whatever a server does comes back as a value: nothing that happens to one request is an exception,
and nothing that it answers is tried again, for a second attempt would hide what the first one cost. An
instant is taken when bytes arrive, before they are parsed.

Connections are kept from one request to the next, as gateways and SDKs do, or opened for each; either way
TTFT includes what that takes. asyncio turns Nagle's algorithm off by itself. No proxy or login is taken from
the environment: what is measured is the server that was named. No compression is offered: it would hold
tokens back.
"""

import asyncio
import re
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec

from headrace.core.errors import BadInput, TargetFailed
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.descriptors import allow_many_connections
from headrace.net.event_stream import EventStream, EventTooLong
from headrace.net.exchange import KEPT_S, ConnectionBroke, Head, Host, exchange
from headrace.net.fetch import BODY_FIELDS, CLOSES, fetch, refusal, request_head
from headrace.net.transcript import StreamBroke, Transcript, shorten

DEFAULT_TIMEOUT_S = 120.0

_PORT_ALONE = re.compile(r":?\d+")
_HALF_A_SCHEME = re.compile(r"https?:/?[^/\d]", re.IGNORECASE)
_API_PATH = re.compile(r"/v1(/models|/completions|/chat/completions)?/*$")
_MOST_ERROR_BYTES = 16_384
MOST_BYTES, MOST_BYTES_A_TOKEN = 1 << 22, 1 << 14
"""Of an answer: a server that floods must not take our whole time until its request times out."""


class HttpSender:
    """Sends to one server. Use it with `async with`, inside the event loop of the run."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        clock: Callable[[], float],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        api_key: str | None = None,
        kept_s: float = KEPT_S,
    ) -> None:
        """`kept_s` is how long a connection may have been idle to be used again; 0 opens one for each."""
        self._host = Host(base_url(url), clock, kept_s=kept_s)
        address = f"{base_url(url)}/v1/chat/completions"
        self._head = request_head("POST", address, api_key) + (b"" if kept_s else CLOSES) + BODY_FIELDS
        self._model = model
        self._clock = clock
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        allow_many_connections()
        await self._host.look_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.close()
        await asyncio.sleep(0)  # for asyncio to close the sockets

    @property
    def connections(self) -> int:
        """Opened so far."""
        return self._host.opened

    @property
    def sent_again(self) -> int:
        """Requests whose kept connection had been closed before they came."""
        return self._host.sent_again

    async def send(self, ask: Ask) -> Answer | Broken:
        body = _body(ask, self._model)
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        heard = Transcript(ask)
        sent_at = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._listen(request, heard, ask.max_tokens)
            return heard.answer(sent_at)
        except StreamBroke as error:
            kind, reason = error.kind, str(error)
        except EventTooLong as error:
            kind, reason = FailureKind.MALFORMED, str(error)
        except TimeoutError:
            kind = FailureKind.TIMED_OUT
            reason = f"not finished {self._timeout_s:g} s after it was sent"
        return Broken(self._clock(), kind, reason, heard.tokens_received, sent_at)

    async def _listen(self, request: bytes, heard: Transcript, most_tokens: int) -> None:
        listener = _Listener(heard, MOST_BYTES + MOST_BYTES_A_TOKEN * most_tokens)
        try:
            await exchange(self._host, request, listener)
        except ConnectionBroke:
            if not (heard.is_whole or listener.is_refusal):
                raise
        listener.conclude()


class _Listener:
    """Turns an answer into events for a transcript, or into the reason why there are none."""

    def __init__(self, heard: Transcript, most_bytes: int) -> None:
        self._heard = heard
        self._most_bytes = self._bytes_left = most_bytes
        self._head = Head()
        self._stream = EventStream()
        self._first_bytes = b""
        self._heard_events = False

    @property
    def is_refusal(self) -> bool:
        """The server has said no, whatever became of the connection: some do not hear a request out."""
        return self._head.status not in (0, 200)

    def begins(self, head: Head) -> None:
        self._head = head
        coding = head.fields.get("content-encoding", "identity")
        if head.status == 200 and coding.lower() != "identity":
            why = f"its answer is compressed ({shorten(coding)}), which nobody asked for"
            raise StreamBroke(FailureKind.MALFORMED, why)

    def hears(self, body: bytes, at: float) -> bool:
        if self._head.status != 200:
            self._first_bytes += body[:_MOST_ERROR_BYTES]
            return len(self._first_bytes) >= _MOST_ERROR_BYTES
        self._bytes_left -= len(body)
        if self._bytes_left < 0:
            why = f"still streaming after {self._most_bytes:,} bytes"
            raise StreamBroke(FailureKind.MALFORMED, why)
        if not self._heard_events:
            self._first_bytes = self._first_bytes or body
        for data in self._stream.push(body):
            self._heard_events = True
            self._heard.hear(data, at)
        return self._heard.has_ended

    def conclude(self) -> None:
        """All has been heard. Raises `StreamBroke` if that was no stream."""
        head, said = self._head, self._first_bytes
        if head.status != 200:
            # A redirect is not followed: it would time two servers and call it one.
            raise StreamBroke(FailureKind.REFUSED, refusal(head, said))
        if said and not self._heard_events and head.content_type != "text/event-stream":
            what = f"answered with {head.content_type} instead of a stream: {shorten(said)}"
            raise StreamBroke(FailureKind.MALFORMED, what)


async def served_models(url: str, *, timeout_s: float = 10.0, api_key: str | None = None) -> list[str]:
    """Names under which a server serves, its main one first. Raises `TargetFailed`."""
    address = f"{base_url(url)}/v1/models"
    hint = _other_port(address) + "is a server running there? one that lists no models needs --model"
    try:
        body = await fetch(address, timeout_s=timeout_s, api_key=api_key)
        models = [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except StreamBroke as error:
        said = "answered " if error.kind is FailureKind.REFUSED else ""
        raise TargetFailed(f"{address}: {said}{error}", hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TargetFailed(f"{address} does not list models: {error}", hint) from error
    if not models:
        raise TargetFailed(f"{address} lists no model", hint)
    return models


def _other_port(address: str) -> str:
    """Where none was given: nobody means the web's port who measures a server on `localhost`."""
    parts = urlsplit(address)
    if parts.port is not None:
        return ""
    port, name = 443 if parts.scheme == "https" else 80, parts.hostname or ""
    model = "" if "." in name or name == "localhost" else f"a model is served first: headrace serve {name}. "
    return f"that is port {port}, as none was given; most servers need one, as {name}:8000. {model}"


async def server_version(url: str, *, timeout_s: float = 2.0, api_key: str | None = None) -> str | None:
    """For the record, where the server tells it (vLLM and Headrace do); nothing depends on it."""
    try:
        body = await fetch(f"{base_url(url)}/version", timeout_s=timeout_s, api_key=api_key)
        return msgspec.json.decode(body, type=_Version).version
    except (StreamBroke, msgspec.DecodeError, UnicodeDecodeError):
        return None


def base_url(text: str) -> str:
    """`host:port`, with or without scheme and path of the API, as `scheme://host:port`. A port alone is one
    of this machine. Raises `BadInput`.
    """
    hint = "give it as http://HOST:PORT"
    said = text.strip()
    if _PORT_ALONE.fullmatch(said):  # one of this machine, and no host of the name 8000
        said = f"localhost:{said.lstrip(':')}"
    if _HALF_A_SCHEME.match(said):
        raise BadInput(f"{text!r} is no address of a server", "a scheme ends with ://, as http://HOST:PORT")
    whole = said if "://" in said else f"http://{said}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{text!r} is no address of a server: {error}", hint) from error
    if parts.scheme not in ("http", "https"):
        raise BadInput(f"{text!r}: only http and https servers can be measured, not {parts.scheme!r}", hint)
    if not host or not whole.isascii() or any(c.isspace() for c in whole) or parts.username is not None:
        raise BadInput(f"{text!r} is no address of a server", hint)
    if parts.query or parts.fragment:
        raise BadInput(f"{text!r}: an address of a server ends before '?' and '#'", hint)
    path = _API_PATH.sub("", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


class _Model(msgspec.Struct):
    id: str


class _Version(msgspec.Struct):
    version: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _body(ask: Ask, model: str) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": ask.ignore_eos,
    }
    if ask.priority:  # vLLM refuses the field unless its policy is `priority`
        body["priority"] = ask.priority
    return msgspec.json.encode(body)
