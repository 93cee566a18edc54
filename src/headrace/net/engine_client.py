"""The HTTP process's end of the engine: submit a request, get its stream.

    submit(request) -> Stream     <-- outputs, one by one, from the Step messages
    end(stream, reason)           --> Cancel, if the engine still works on it

When the engine's process dies every stream gets the reason as an error, and so does
everyone who submits afterwards. Nothing here waits for the engine: messages go into the
socket's own buffer, and the engine takes them when its step is over.
"""

import asyncio
import contextlib
import logging
from collections import deque
from multiprocessing.context import SpawnProcess

from headrace.core.errors import EngineDied, HeadraceError
from headrace.core.output import Output
from headrace.core.request import FinishReason, Request
from headrace.net.engine_process import Recipe, how_it_ended, start_engine_process
from headrace.net.messages import (
    LENGTH_BYTES,
    Cancel,
    FromEngine,
    Leave,
    Ready,
    Refused,
    Step,
    Stopped,
    Submit,
    frame,
    read_from_engine,
)
from headrace.net.metrics import Metrics, Record

_log = logging.getLogger(__name__)

MOST_HELD_OUTPUTS = 256
"""Outputs kept apart for a client that reads slowly; further tokens join the last one."""

LEAVE_WITHIN_S = 5.0
"""How long the process may take to end by itself; it may be in the middle of a long step."""


class Stream:
    """The outputs of one request, on their way to one listener."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.record = Record.of(request)
        self._outputs: deque[Output] = deque()
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, output: Output) -> None:
        if len(self._outputs) < MOST_HELD_OUTPUTS:
            self._outputs.append(output)
        else:
            last = self._outputs[-1]
            last.token_ids += output.token_ids
            if last.logprobs is not None and output.logprobs is not None:
                last.logprobs += output.logprobs
            last.finish_reason, last.stop_token_id = output.finish_reason, output.stop_token_id
        self._news.set()

    def fail(self, error: Exception) -> None:
        """The listener gets `error` instead of whatever has not been taken yet."""
        self._error = error
        self._news.set()

    async def get(self) -> Output:
        """The next output, as soon as there is one. Raises what the stream failed with."""
        while self._error is None and not self._outputs:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        return self._outputs.popleft()


class EngineClient:
    """One running engine process, as the HTTP process sees it."""

    def __init__(
        self,
        process: SpawnProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ready: Ready,
        metrics: Metrics,
    ) -> None:
        self.settings = ready.settings
        self.budget = ready.budget
        self.metrics = metrics
        self.died: HeadraceError | None = None
        self._process = process
        self._reader = reader
        self._writer = writer
        self._streams: dict[str, Stream] = {}
        self._listener = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def submit(self, request: Request) -> Stream:
        """Put `request` before the engine. Raises `EngineDied` when there is none any more."""
        if self.died is not None:
            raise self.died
        stream = Stream(request)
        self._streams[request.request_id] = stream
        self._writer.write(frame(Submit(request)))
        return stream

    def end(self, stream: Stream, reason: str) -> None:
        """Nobody wants more of `stream`. Does nothing if it has ended already."""
        if self._streams.pop(stream.request_id, None) is None:
            return
        self.metrics.on_ended(stream.record, reason)
        if self.died is None:
            self._writer.write(frame(Cancel(stream.request_id)))

    def end_all(self, error: HeadraceError) -> None:
        """End every request; their listeners get `error`."""
        for stream in tuple(self._streams.values()):
            self.end(stream, "abort")
            stream.fail(error)

    async def stop(self, within_s: float = LEAVE_WITHIN_S) -> None:
        """End the process: by its own doing if it can within the bound, by force if it does not."""
        self._listener.cancel()
        self._die(EngineDied("the server has stopped"))
        with contextlib.suppress(OSError):
            self._writer.write(frame(Leave()))
            await self._writer.drain()
        await end_process(self._process, within_s)
        self._writer.close()

    async def _listen(self) -> None:
        try:
            while True:
                self._handle(await read_message(self._reader))
        except (asyncio.IncompleteReadError, OSError):
            await asyncio.to_thread(self._process.join, 1.0)
            self._lose(EngineDied(f"the engine's process has ended ({how_it_ended(self._process)})"))

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Step():
                self._deliver(message)
            case Refused(request_id=request_id, problem=problem):
                if stream := self._streams.pop(request_id, None):
                    stream.fail(problem.error())
            case Stopped(problem=problem):
                self._lose(EngineDied(f"the engine has stopped: {problem.message}", problem.hint))
            case Ready():
                raise AssertionError("an engine says once that it is ready")

    def _deliver(self, step: Step) -> None:
        self.metrics.on_step(step)
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # its listener has left, and the engine had not heard of it yet
            if output.error is not None:
                del self._streams[output.request_id]
                self.metrics.on_ended(stream.record, FinishReason.ERROR)
                stream.fail(HeadraceError(output.error))
                continue
            self.metrics.on_output(stream.record, output, step.finished_ns)
            if output.finish_reason is not None:
                del self._streams[output.request_id]
                self.metrics.on_ended(stream.record, output.finish_reason)
            stream.put(output)

    def _lose(self, error: EngineDied) -> None:
        """The engine is gone, and nobody asked it to leave."""
        if self.died is None:
            _log.error("headrace: %s; %d requests are lost", error, len(self._streams))
        self._die(error)

    def _die(self, error: EngineDied) -> None:
        self.died = self.died or error
        for stream in self._streams.values():
            self.metrics.on_ended(stream.record, "error")
            stream.fail(self.died)
        self._streams.clear()


async def read_message(reader: asyncio.StreamReader) -> FromEngine:
    """The next message. Raises `IncompleteReadError` when the process is gone."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return read_from_engine(await reader.readexactly(length))


async def launch(recipe: Recipe, model_name: str) -> EngineClient:
    """Start an engine and wait until it is ready. Raises what kept it from starting."""
    process, ours = start_engine_process(recipe)
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            ready = await _first_message(reader, process)
        except BaseException:
            writer.close()
            raise
    except BaseException:
        await end_process(process, 0.0)
        raise
    return EngineClient(process, reader, writer, ready, Metrics(model_name, ready.settings, ready.budget))


async def _first_message(reader: asyncio.StreamReader, process: SpawnProcess) -> Ready:
    try:
        message = await read_message(reader)
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


async def end_process(process: SpawnProcess, within_s: float) -> None:
    """Give `process` some time to end, then kill it."""
    await asyncio.to_thread(process.join, within_s)
    if process.is_alive():
        process.kill()
        await asyncio.to_thread(process.join)
