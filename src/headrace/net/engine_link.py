"""One engine process and the socket to it, from the HTTP process's side.

    launch(recipe) -> EngineLink: send messages, receive messages, end it

Nothing here waits for the engine to read: messages go into the socket's own buffer, and the
engine takes them when its step is over. Knows nothing of requests and streams.
"""

import asyncio
import contextlib
from multiprocessing.context import SpawnProcess

from headrace.core.errors import EngineDied
from headrace.net.engine_process import Recipe, how_it_ended, release, start_engine_process
from headrace.net.messages import (
    LENGTH_BYTES,
    FromEngine,
    Leave,
    Ready,
    Stopped,
    ToEngine,
    frame,
    read_from_engine,
)

LEAVE_WITHIN_S = 5.0
"""How long the process may take to end by itself; it may be in the middle of a long step."""


class EngineLink:
    """A process that has said it is ready."""

    def __init__(
        self,
        process: SpawnProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ready: Ready,
    ) -> None:
        self.ready = ready
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self._killed_because: str | None = None

    def send(self, message: ToEngine) -> None:
        self._writer.write(frame(message))

    async def receive(self) -> FromEngine:
        """The next message. Raises `EngineDied` when the process is gone or has stopped itself."""
        try:
            message = await _read_message(self._reader)
        except (asyncio.IncompleteReadError, OSError) as error:
            await asyncio.to_thread(self._process.join, 1.0)
            why = self._killed_because or f"the engine's process has ended ({how_it_ended(self._process)})"
            raise EngineDied(why) from error
        if isinstance(message, Stopped):
            raise EngineDied(f"the engine has stopped: {message.problem.message}", message.problem.hint)
        return message

    def kill(self, why: str) -> None:
        """Whatever it is doing; who receives hears why."""
        self._killed_because = why
        self._process.kill()

    async def end(self, within_s: float = LEAVE_WITHIN_S) -> None:
        """End the process: by its own doing if it can within the bound, by force if it does not."""
        # Sent while we wait. To wait for the sending would be for ever with an engine that does not read.
        with contextlib.suppress(OSError):
            self._writer.write(frame(Leave()))
        await _end_process(self._process, within_s)
        self._writer.close()


async def launch(recipe: Recipe) -> EngineLink:
    """Start an engine and wait until it is ready. Raises what kept it from starting."""
    try:
        process, ours = start_engine_process(recipe)
    except OSError as error:
        raise EngineDied(f"the engine's process could not be started: {error}") from error
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            ready = await _first_message(reader, process)
        except BaseException:
            writer.close()
            raise
    except BaseException:
        await _end_process(process, 0.0)
        raise
    return EngineLink(process, reader, writer, ready)


async def _read_message(reader: asyncio.StreamReader) -> FromEngine:
    """Raises `IncompleteReadError` when the process is gone."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return read_from_engine(await reader.readexactly(length))


async def _first_message(reader: asyncio.StreamReader, process: SpawnProcess) -> Ready:
    try:
        message = await _read_message(reader)
    except (asyncio.IncompleteReadError, OSError) as error:
        await asyncio.to_thread(process.join, 1.0)
        raise EngineDied(
            f"the engine's process ended while it loaded the model ({how_it_ended(process)})",
            "out of memory? Lower --kv-cache-memory-bytes, or see the lines above",
        ) from error
    if isinstance(message, Stopped):
        raise message.problem.error()
    assert isinstance(message, Ready), f"an engine first says that it is ready, not {message}"
    return message


async def _end_process(process: SpawnProcess, within_s: float) -> None:
    """Give `process` some time to end, then kill it."""
    await asyncio.to_thread(process.join, within_s)
    if process.is_alive():
        process.kill()
        await asyncio.to_thread(process.join)
    release(process)
