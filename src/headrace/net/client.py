"""The client's side of the wire: asks an OpenAI-compatible server, times what comes back.

    Ask -> HttpSender.send -> POST /v1/chat/completions, streamed -> Answer | Broken

Whatever a server does comes back as a value: nothing that happens to one request is an exception,
and nothing is tried again, for a second attempt would hide what the first one cost. An instant is
taken when bytes arrive, before they are parsed.

Every request opens a connection of its own, as a new user does, and TTFT includes that: a kept one
may be closing just as the next request is sent into it, which would count as the server's failure.
aiohttp turns Nagle's algorithm off by itself. No proxy or login is taken from the environment:
what is measured is the server that was named. No compression is offered: it would hold tokens back.
"""

import asyncio
import errno
import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from headrace.core.errors import BadInput, TargetFailed
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.event_stream import EventStream, EventTooLong
from headrace.net.transcript import StreamBroke, Transcript, error_message, shorten

DEFAULT_TIMEOUT_S = 120.0

_API_PATH = re.compile(r"/v1(/models|/completions|/chat/completions)?/*$")
_MOST_ERROR_BYTES = 16_384


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
    ) -> None:
        self._url = f"{base_url(url)}/v1/chat/completions"
        self._model = model
        self._clock = clock
        self._timeout_s = timeout_s
        self._session = _session(api_key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, ask: Ask) -> Answer | Broken:
        body = _body(ask, self._model)
        heard = Transcript(ask)
        sent_at = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._listen(body, heard)
            return heard.answer(sent_at)
        except StreamBroke as error:
            kind, reason = error.kind, str(error)
        except EventTooLong as error:
            kind, reason = FailureKind.MALFORMED, str(error)
        except TimeoutError:
            kind = FailureKind.TIMED_OUT
            reason = f"not finished {self._timeout_s:g} s after it was sent"
        except (aiohttp.ClientError, OSError) as error:
            kind, reason = _translate(error)
        return Broken(self._clock(), kind, reason, heard.tokens_received)

    async def _listen(self, body: bytes, heard: Transcript) -> None:
        # A redirect is not followed: it would time two servers and call it one.
        async with self._session.post(self._url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                raise StreamBroke(FailureKind.REFUSED, await _refusal(response))
            try:
                await self._follow(response, heard)
            except aiohttp.ClientPayloadError:
                if not heard.is_whole:
                    raise

    async def _follow(self, response: aiohttp.ClientResponse, heard: Transcript) -> None:
        stream = EventStream()
        first_bytes, heard_events = b"", False
        async for received in response.content.iter_any():
            at = self._clock()
            first_bytes = first_bytes or received
            for data in stream.push(received):
                heard_events = True
                heard.hear(data, at)
            if heard.has_ended:
                return
        if first_bytes and not heard_events and response.content_type != "text/event-stream":
            said = f"answered with {response.content_type} instead of a stream: {shorten(first_bytes)}"
            raise StreamBroke(FailureKind.MALFORMED, said)


async def served_models(url: str, *, timeout_s: float = 10.0, api_key: str | None = None) -> list[str]:
    """Names under which a server serves, its main one first. Raises `TargetFailed`."""
    address = f"{base_url(url)}/v1/models"
    hint = "is a server running there? one that lists no models needs --model"
    try:
        async with (
            asyncio.timeout(timeout_s),
            _session(api_key) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise TargetFailed(f"{address} answered {await _refusal(response)}", hint)
            body = await response.read()
        models = [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except TimeoutError:
        raise TargetFailed(f"{address} did not answer within {timeout_s:g} s", hint) from None
    except (aiohttp.ClientError, OSError) as error:
        raise TargetFailed(f"{address}: {_translate(error)[1]}", hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TargetFailed(f"{address} does not list models: {error}", hint) from error
    if not models:
        raise TargetFailed(f"{address} lists no model", hint)
    return models


async def server_version(url: str, *, timeout_s: float = 2.0, api_key: str | None = None) -> str | None:
    """For the record, where the server tells it (vLLM and Headrace do); nothing depends on it."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            _session(api_key) as session,
            session.get(f"{base_url(url)}/version", allow_redirects=False) as response,
        ):
            body = await response.read() if response.status == 200 else b""
        return msgspec.json.decode(body, type=_Version).version
    except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def base_url(text: str) -> str:
    """`host:port`, with or without scheme and path of the API, as `scheme://host:port`. Raises `BadInput`."""
    hint = "give it as http://HOST:PORT"
    whole = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{text!r} is no address of a server: {error}", hint) from error
    if parts.scheme not in ("http", "https"):
        raise BadInput(f"{text!r}: only http and https servers can be measured, not {parts.scheme!r}", hint)
    if not host or any(c.isspace() for c in whole) or parts.username is not None:
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


def _session(api_key: str | None) -> aiohttp.ClientSession:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "X-Headrace-Bill": "1"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
    )


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


async def _refusal(response: aiohttp.ClientResponse) -> str:
    status = f"{response.status} {response.reason or ''}".strip()
    if 300 <= response.status < 400:
        return f"{status}: redirects to {shorten(response.headers.get('Location', 'nowhere'))}"
    said = error_message(await response.content.read(_MOST_ERROR_BYTES))
    return f"{status}: {said}" if said else status


def _translate(error: aiohttp.ClientError | OSError) -> tuple[FailureKind, str]:
    """What aiohttp's errors mean to a person who knows nothing of aiohttp."""
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        return FailureKind.CLIENT_ERROR, "out of file handles here; raise the limit (ulimit -n)"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FailureKind.UNREACHABLE, f"no host of the name {error.host}"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = os.strerror(error.errno) if error.errno else str(error)
        return FailureKind.UNREACHABLE, f"no connection: {why}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return FailureKind.CUT, "the server closed the connection before it answered"
    if isinstance(error, aiohttp.ClientResponseError):
        return FailureKind.MALFORMED, f"not an HTTP answer: {shorten(error.message)}"
    return FailureKind.CUT, f"the connection broke: {shorten(str(error))}"
