"""A served model: port, engine, HTTP, and how all three end.

    bind (net/listening.py) -> start the engine, load the tokenizer -> announce -> serve
    SIGTERM or Ctrl-C: no new requests (503), running ones may end within a bound, then exit
    once more: at once
    the engine keeps dying: exit, with what it died of

The port is taken before the model is loaded, so that the commonest mistake costs no wait.
"""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from headrace.core.errors import Busy
from headrace.core.ports import Tokenizer
from headrace.core.settings import Settings
from headrace.net.admission import Bounds
from headrace.net.app import make_app, paths_of
from headrace.net.connection import Patient
from headrace.net.descriptors import allow_many_connections
from headrace.net.door import Door
from headrace.net.engine_client import EngineClient
from headrace.net.engine_link import LEAVE_WITHIN_S
from headrace.net.engine_process import Recipe
from headrace.net.front_end import FrontEnd
from headrace.net.gate import RETRY_AFTER_S, Gate
from headrace.net.listening import Listener, Tls, url_of
from headrace.net.messages import Budget
from headrace.net.meter import Meter
from headrace.net.stats_log import log_stats
from headrace.net.warm_up import warm_up

KEEP_ALIVE_S = 5
LAST_BYTES_WITHIN_S = 1
"""After the drain: how long uvicorn waits for answers that are being written."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is served. Clients may use any of `model_names`; the first one stands for all."""

    model_names: tuple[str, ...]
    recipe: Recipe
    load_tokenizer: Callable[[], Tokenizer]
    shutdown_timeout_s: float
    bounds: Bounds = field(default_factory=Bounds)
    tls: Tls | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Any of them opens the door. Without any, no key is asked for."""
    stream_interval: int = 1
    """Tokens of a streamed event, but for the first and the last one."""
    logs_stats: bool = True
    warmup: bool = True


@dataclass(frozen=True, slots=True)
class Serving:
    """Told once requests are accepted."""

    url: str
    settings: Settings
    budget: Budget
    engine_pid: int | None


def serve(service: Service, listener: Listener, announce: Callable[[Serving], None]) -> None:
    """Serve on what `bind` gave until a signal says stop. Raises what kept it from starting, and
    `KeyboardInterrupt` where it was stopped before it served: what was asked for never was.
    """
    allow_many_connections()
    if not asyncio.run(Server(service, listener).run(announce)):
        raise KeyboardInterrupt


class Server:
    """One service, from start to end, in the running event loop."""

    def __init__(self, service: Service, listener: Listener) -> None:
        self._service = service
        self._listener = listener
        self._gate = Gate()
        self._running: asyncio.Task[None] | None = None
        self._engine: EngineClient | None = None
        self._http: uvicorn.Server | None = None
        self._draining: asyncio.Task[None] | None = None

    async def run(self, announce: Callable[[Serving], None]) -> bool:
        """Load, announce, serve, drain. Returns when stopped whether it served; raises what kept it from
        starting.
        """
        self._running = asyncio.create_task(self._load_and_serve(announce))
        with _signals(self.stop):
            await asyncio.wait((self._running,))
        if self._running.cancelled():
            return False
        self._running.result()
        return True

    def stop(self) -> None:
        """While loading: give up. While serving: drain. While draining: end at once."""
        assert self._running is not None, "run() comes first"
        if self._http is None or self._engine is None:
            self._running.cancel()
        elif self._draining is None:
            self._draining = asyncio.create_task(self._drain(self._http, self._engine))
        else:
            self._http.should_exit = self._http.force_exit = True
            self._engine.end_all(Busy("the server was stopped", RETRY_AFTER_S))

    async def _load_and_serve(self, announce: Callable[[Serving], None]) -> None:
        self._engine, tokenizer = await self._load()
        service = self._service
        front_end = FrontEnd(self._engine, tokenizer, service.model_names, service.stream_interval)
        telling = asyncio.create_task(self._tell_stats(self._engine))
        try:
            routes = make_app(front_end, self._gate)
            door = _for_browsers(Door(routes, self._service.api_keys))
            app = Meter(door, paths_of(routes), self._engine.metrics.http)
            self._http = http = _Http(app, self._service.tls, lambda: announce(self._serving()))
            self._engine.given_up.add_done_callback(lambda _: setattr(http, "should_exit", True))
            self._listener.open()
            await http.serve([self._listener])
            if self._engine.given_up.done():
                raise self._engine.given_up.result()
        finally:
            telling.cancel()
            front_end.close()
            await self._engine.stop(0.0 if self._http and self._http.force_exit else LEAVE_WITHIN_S)

    async def _load(self) -> tuple[EngineClient, Tokenizer]:
        """The engine starts in its own process while the tokenizer loads in this one."""
        service = self._service
        launching = asyncio.create_task(
            EngineClient.start(service.recipe, service.model_names[0], service.bounds)
        )
        try:
            tokenizer = await asyncio.to_thread(self._load_tokenizer)
            return await launching, tokenizer
        except BaseException:
            launching.cancel()
            await asyncio.wait((launching,))
            raise

    def _load_tokenizer(self) -> Tokenizer:
        tokenizer = self._service.load_tokenizer()
        if self._service.warmup:
            warm_up(tokenizer)
        return tokenizer

    async def _tell_stats(self, engine: EngineClient) -> None:
        if self._service.logs_stats:
            await log_stats(engine.metrics.totals)

    def _serving(self) -> Serving:
        assert self._engine is not None, "the engine is ready before the port is open"
        return Serving(
            url=url_of(self._listener, "https" if self._service.tls else "http"),
            settings=self._engine.settings,
            budget=self._engine.budget,
            engine_pid=self._engine.pid,
        )

    async def _drain(self, http: uvicorn.Server, engine: EngineClient) -> None:
        self._gate.close()
        within_s = self._service.shutdown_timeout_s
        if not await self._gate.wait_empty(within_s):
            engine.end_all(
                Busy(f"the server stopped; this answer needed more than {within_s:g} s", RETRY_AFTER_S)
            )
            await self._gate.wait_empty(LAST_BYTES_WITHIN_S)
        http.should_exit = True


def _for_browsers(app: ASGIApp) -> ASGIApp:
    """Pages from anywhere may ask, as by vLLM's default. Around the door: a page can read a 401 too."""
    return CORSMiddleware(app, allow_origins=("*",), allow_methods=("*",), allow_headers=("*",))


class _Http(uvicorn.Server):
    """uvicorn, but the signals are ours, and it says when it listens."""

    def __init__(self, app: ASGIApp, tls: Tls | None, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Patient,
                log_config=None,
                log_level="error",  # its warnings are of what clients do: one could fill the disk with them
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                ssl_certfile=tls.certfile if tls else None,
                ssl_keyfile=tls.keyfile if tls else None,
                ssl_ca_certs=tls.ca_certs if tls else None,
                ssl_cert_reqs=tls.cert_reqs if tls else 0,
                timeout_graceful_shutdown=LAST_BYTES_WITHIN_S,
            )
        )
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """SIGTERM and Ctrl-C call `stop`. Only the main thread can have them; elsewhere nobody sends any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
