"""A real server on the loopback, in a thread, with the scripted model behind it."""

import asyncio
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

from headrace.core.errors import HeadraceError
from headrace.executor.scripted import ScriptedTokenizer
from headrace.net.admission import Bounds
from headrace.net.engine_process import Recipe
from headrace.net.listening import bind
from headrace.net.server import Server, Service, Serving
from tests.net.scripted import ScriptedRecipe

MODEL = "scripted"


def service(
    recipe: Recipe | None = None,
    shutdown_timeout_s: float = 2.0,
    bounds: Bounds | None = None,
    api_keys: tuple[str, ...] = (),
) -> Service:
    return Service(
        (MODEL, "alias"),
        recipe or ScriptedRecipe(),
        ScriptedTokenizer,
        shutdown_timeout_s,
        bounds or Bounds(),
        api_keys=api_keys,
    )


class RunningServer:
    """A server in a thread with an event loop of its own."""

    def __init__(self, of: Service, port: int = 0) -> None:
        self.serving: Serving | None = None
        self.error: HeadraceError | None = None
        self._service = of
        self._port = port
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    @property
    def url(self) -> str:
        assert self.serving is not None, "the server has not started"
        return self.serving.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def engine_pid(self) -> int | None:
        """Of the process that runs now; None while there is none."""
        assert self._server is not None, "the server has not started"
        return self._server._engine.pid if self._server._engine else None

    def kill_engine(self) -> int:
        """The number that its process had."""
        pid = self.engine_pid
        assert pid is not None, "it has an engine"
        os.kill(pid, signal.SIGKILL)
        return pid

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self) -> None:
        """Start without waiting for it to be ready."""
        self._thread.start()

    def start(self) -> None:
        self.begin()
        if not self._started.wait(30):
            self.stop()
            raise AssertionError("the server did not start within 30 s")
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """As a signal would: the first call drains, the second ends at once."""
        if self._loop is not None and self._server is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)

    def join(self, within_s: float = 15.0) -> None:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the server did not end"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except HeadraceError as error:
            self.error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with bind("127.0.0.1", self._port) as listener:
            self._server = Server(self._service, listener)
            await self._server.run(self._announce)

    def _announce(self, serving: Serving) -> None:
        self.serving = serving
        self._started.set()


@contextmanager
def running(of: Service) -> Generator[RunningServer, None, None]:
    server = RunningServer(of)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.join()
