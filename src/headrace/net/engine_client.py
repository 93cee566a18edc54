"""The HTTP process's end of the engine: submit a request, get its stream.

    submit(request) -> Stream     <-- outputs, one by one, from the Step messages
    end(stream, reason)           --> Cancel, if the engine still works on it

When the engine's process dies every stream gets the reason as an error, and the process is
started again; until it is ready, whoever submits is told when to come back. A process that keeps
dying is given up (`net/restarts.py`).
"""

import asyncio
import logging
import math
import time
from collections import deque

from headrace.core.errors import BadInput, Busy, EngineDied, HeadraceError, TimedOut
from headrace.core.output import Output
from headrace.core.request import Request
from headrace.net.admission import Admission, Bounds
from headrace.net.engine_link import LEAVE_WITHIN_S, EngineLink, launch
from headrace.net.engine_process import Recipe
from headrace.net.messages import (
    Cancel,
    Expire,
    Expired,
    FromEngine,
    Ready,
    Refused,
    Step,
    Stopped,
    Submit,
    Taken,
    ToEngine,
)
from headrace.net.metrics.metrics import Metrics
from headrace.net.metrics.of_requests import Record, Siblings
from headrace.net.process_state import why_it_does_not_run
from headrace.net.pulse import Pulse
from headrace.net.restarts import QUICK_DEATH_S, Restarts

_log = logging.getLogger(__name__)

MOST_HELD_OUTPUTS = 256
"""Outputs kept apart for a client that reads slowly; further tokens join the last one."""

SILENT_AFTER_S = 600.0
"""An engine that says nothing for so long while requests wait hangs: it is ended and started again.

vLLM gives a step 300 s; 2,048 tokens of a model of 8 billion weights can take two slow cores longer.
"""

_ASK_LESS = "loosen its grammar, or what else it says about tokens"
"""A request fails alone only over the grammar that it brought: its sender's to mend, not the server's."""


class Stream:
    """The outputs of one request, on their way to one listener.

    It is woken for so many tokens at once (None: for all), for the first, and for the end.
    """

    def __init__(
        self, request: Request, siblings: Siblings | None = None, tokens_at_once: int | None = 1
    ) -> None:
        self.request_id = request.request_id
        self.record = Record.of(request, siblings)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.timers: list[asyncio.TimerHandle] = []
        self._tokens_at_once = tokens_at_once
        self._outputs: deque[Output] = deque()
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, output: Output) -> None:
        if not self._outputs or (self._is_due() and len(self._outputs) < MOST_HELD_OUTPUTS):
            self._outputs.append(output)
        else:
            last = self._outputs[-1]
            last.token_ids += output.token_ids
            if last.logprobs is not None and output.logprobs is not None:
                last.logprobs += output.logprobs
            last.finish_reason, last.stop_token_id = output.finish_reason, output.stop_token_id
        if self._is_due():
            self._news.set()

    def fail(self, error: Exception) -> None:
        """The listener gets `error` instead of whatever has not been taken yet."""
        self._error = error
        self._news.set()

    async def get(self) -> Output:
        """The next output, as soon as there is one. Raises what the stream failed with."""
        await self._news.wait()
        if self._error is not None:
            raise self._error
        output = self._outputs.popleft()
        if not self._outputs or (len(self._outputs) == 1 and not self._is_due()):
            self._news.clear()
        return output

    def _is_due(self) -> bool:
        """Whether the last of the outputs is as large as it is to be; those before it are."""
        last = self._outputs[-1]
        if last.finish_reason is not None or self._tokens_at_once is None:
            return last.finish_reason is not None
        return last.first is not None or len(last.token_ids) >= self._tokens_at_once


class EngineClient:
    """The engine, as the HTTP process sees it: one process after the other."""

    def __init__(
        self, recipe: Recipe, link: EngineLink, model_name: str, bounds: Bounds, start_took_s: float
    ) -> None:
        self.settings = settings = link.ready.settings
        self.budget = link.ready.budget
        self._pulse = pulse = Pulse(settings.max_num_batched_tokens, time.monotonic())
        self.metrics = metrics = Metrics(
            model_name, settings, self.budget, lambda: pulse.untaken, lambda: pulse.silent_s(time.monotonic())
        )
        self.admission = Admission(bounds, metrics.on_refused)
        self.died: HeadraceError | None = None
        """Why nothing can be submitted just now."""
        self.given_up: asyncio.Future[EngineDied] = asyncio.get_running_loop().create_future()
        """Why there will be no engine any more, once that is so."""
        metrics.watch_process(lambda: self.pid)
        self._recipe = recipe
        self._link: EngineLink | None = link
        self._start_took_s = start_took_s
        self._streams: dict[str, Stream] = {}
        self._supervisor = asyncio.create_task(self._supervise(link))
        self._supervisor.add_done_callback(self._give_up)
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, recipe: Recipe, model_name: str, bounds: Bounds) -> "EngineClient":
        """Raises what kept the first process from starting."""
        began_at = time.monotonic()
        link = await launch(recipe)
        return cls(recipe, link, model_name, bounds, time.monotonic() - began_at)

    @property
    def pid(self) -> int | None:
        return self._link.pid if self._link else None

    def what_is_wrong(self) -> HeadraceError | None:
        """Why a request would not get anywhere now, as well as can be told: the system is asked too."""
        if self.died is not None or self.pid is None:
            return self.died
        if (state := why_it_does_not_run(self.pid)) is not None:
            return self._come_back(f"the engine's process {state}")
        silent_s, patience_s = self._pulse.silent_s(time.monotonic()), self._pulse.patience_s
        if silent_s > patience_s:
            return self._come_back(
                f"the engine has said nothing for {silent_s:.0f} s; its largest step should take no more "
                f"than {patience_s:.0f} s"
            )
        return None

    def submit(
        self, request: Request, siblings: Siblings | None = None, tokens_at_once: int | None = 1
    ) -> Stream:
        """Put `request` before the engine. Raises `died` while there is none.

        `siblings` are shared by the answers to one prompt.
        """
        if self.died is not None:
            raise self.died
        stream = Stream(request, siblings, tokens_at_once)
        self._pulse.sent(request.request_id, time.monotonic())
        self._streams[request.request_id] = stream
        self.admission.entered(stream.num_prompt_tokens)
        self.metrics.on_submitted()
        self._set_timers(stream, request.arrived_ns)
        self._send(Submit(request))
        return stream

    def end(self, stream: Stream, reason: str) -> None:
        """Nobody wants more of `stream`. Does nothing if it has ended already."""
        if stream.request_id in self._streams:
            self._ended(stream, reason)
            self._send(Cancel(stream.request_id))

    def end_all(self, error: HeadraceError) -> None:
        """End every request; their listeners get `error`."""
        for stream in tuple(self._streams.values()):
            self.end(stream, "abort")
            stream.fail(error)

    async def stop(self, within_s: float = LEAVE_WITHIN_S) -> None:
        """End the process: by its own doing if it can within the bound, by force if it does not."""
        self._supervisor.cancel()
        self._watching.cancel()
        await asyncio.wait((self._supervisor, self._watching))
        stopped = EngineDied("the server has stopped")
        self._lose(stopped)
        if self._link is not None:
            await self._link.end(within_s)

    async def _supervise(self, link: EngineLink) -> None:
        """Follow one process after the other. Raises `EngineDied` when they die too quickly."""
        restarts = Restarts()
        while True:
            ready_at = time.monotonic()
            error = await self._follow(link)
            died_at = time.monotonic()
            self._link = None
            wait_s = restarts.after_death(died_at - ready_at)
            self._lose(self._come_back(f"{error}; it is being started again", wait_s or 0.0))
            await link.end(0.0)
            link = await self._start_again(restarts, wait_s, error)
            self._link, self.died = link, None
            _log.warning("headrace: the engine runs again, after %.1f s", time.monotonic() - died_at)

    def _give_up(self, supervisor: asyncio.Task[None]) -> None:
        """Whatever ended the supervisor, its own bugs included, must reach those who wait."""
        if supervisor.cancelled():
            return  # the server stops
        error = supervisor.exception()
        gone = EngineDied(f"the engine is given up: {error}", "see the lines above for what it died of")
        _log.error("headrace: %s", gone, exc_info=None if isinstance(error, EngineDied) else error)
        self._lose(gone)
        self.given_up.set_result(gone)

    async def _follow(self, link: EngineLink) -> EngineDied:
        """Take in what the process says until it is gone, and why it is."""
        while True:
            try:
                message = await link.receive()
            except EngineDied as died:
                return died
            self._handle(message)

    async def _start_again(self, restarts: Restarts, wait_s: float | None, error: Exception) -> EngineLink:
        """Raises `EngineDied` when it has died too often."""
        while wait_s is not None:
            await asyncio.sleep(wait_s)
            try:
                link = await launch(self._recipe)
            except HeadraceError as failure:
                error = failure
                _log.error("headrace: the engine could not be started again: %s", error)
                wait_s = restarts.after_death(0.0)
            else:
                self.metrics.on_restarted()
                return link
        raise EngineDied(
            f"{restarts.quick_deaths} times in a row it died within {QUICK_DEATH_S:g} s; {error}"
        )

    async def _watch(self) -> None:
        """End a process that hangs; the supervisor then sees to the rest."""
        while True:
            await asyncio.sleep(SILENT_AFTER_S / 8)
            silent_s = self._pulse.silent_s(time.monotonic())
            if self._link is not None and silent_s > SILENT_AFTER_S:
                self._link.kill(
                    f"the engine was ended: it said nothing for {silent_s:.0f} s, and a step may take "
                    f"{SILENT_AFTER_S:.0f} s; if its steps are so long, lower --max-num-batched-tokens "
                    f"({self.settings.max_num_batched_tokens:,})"
                )

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Step():
                took_s = (message.plan_ns + message.forward_ns + message.sample_ns) / 1e9
                self._pulse.stepped(message.tokens, took_s, time.monotonic())
                self._deliver(message)
            case Taken():
                self._pulse.taken(message.number, time.monotonic())
                self.metrics.on_taken(message)
            case Refused(request_id=request_id, problem=problem):
                if stream := self._streams.get(request_id):
                    self._fail(stream, problem.error())
            case Expired(request_id=request_id):
                if stream := self._streams.get(request_id):
                    self._expire_in_queue(stream)
            case Ready() | Stopped():
                raise AssertionError(f"an engine that runs does not say {message}")

    def _deliver(self, step: Step) -> None:
        self.metrics.on_step(step)
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # its listener has left, and the engine had not heard of it yet
            if output.error is not None:
                self._fail(stream, BadInput(output.error, _ASK_LESS))
                continue
            if stream.record.first is None and output.first is not None:
                self.admission.prefilled(stream.num_prompt_tokens)
            self.metrics.on_output(stream.record, output, step.finished_ns)
            if output.finish_reason is not None:
                self._ended(stream, output.finish_reason)
            stream.put(output)

    def _ended(self, stream: Stream, reason: str) -> None:
        del self._streams[stream.request_id]
        self._pulse.left(stream.request_id)
        if stream.record.first is None:
            self.admission.prefilled(stream.num_prompt_tokens)
        self.admission.left()
        for timer in stream.timers:
            timer.cancel()
        self.metrics.on_ended(stream.record, reason)

    def _fail(self, stream: Stream, error: Exception) -> None:
        """The engine holds nothing for it (any more)."""
        self._ended(stream, "error")
        stream.fail(error)

    def _lose(self, error: HeadraceError) -> None:
        """There is no engine: whoever waits is told so, and whoever comes."""
        if self.died is None and not self._supervisor.cancelled():
            _log.error("headrace: %s; %d requests are lost", error, len(self._streams))
        self.died = error
        for stream in tuple(self._streams.values()):
            self._fail(stream, error)
        self._pulse.lost(time.monotonic())
        self.metrics.on_lost()

    def _come_back(self, problem: str, wait_s: float = 0.0) -> Busy:
        """`problem`, and to come again when an engine can be up: after as long as it took the first time."""
        retry_after_s = float(math.ceil(wait_s + self._start_took_s))
        return Busy(problem, retry_after_s, f"come back in {retry_after_s:g} s")

    def _set_timers(self, stream: Stream, arrived_ns: int) -> None:
        loop, bounds = asyncio.get_running_loop(), self.admission.bounds
        spent_s = (time.monotonic_ns() - arrived_ns) / 1e9
        if bounds.queue_timeout_s is not None:
            ask = Expire(stream.request_id)  # only the engine knows whether it has begun
            stream.timers.append(loop.call_later(bounds.queue_timeout_s - spent_s, self._send, ask))
        if bounds.request_timeout_s is not None:
            stream.timers.append(loop.call_later(bounds.request_timeout_s - spent_s, self._expire, stream))

    def _expire(self, stream: Stream) -> None:
        tokens, most_s = stream.record.tokens, self.admission.bounds.request_timeout_s
        self.metrics.on_timeout("request")
        self.end(stream, "error")
        stream.fail(
            TimedOut(
                f"not done within {most_s:g} s (--request-timeout), after {tokens} tokens of the answer",
                "ask for fewer tokens, or stream and keep what has come",
            )
        )

    def _expire_in_queue(self, stream: Stream) -> None:
        self.metrics.on_timeout("queue")
        self._fail(
            stream,
            Busy(
                f"no step had room for it within {self.admission.bounds.queue_timeout_s:g} s "
                "(--queue-timeout)",
                self.admission.retry_after_s(),
            ),
        )

    def _send(self, message: ToEngine) -> None:
        if self._link is not None:
            self._link.send(message)
