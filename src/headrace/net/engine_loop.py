"""The engine's process, from inside: take in messages, plan, run, tell.

    drain inbox -> engine.plan -> Taken, if anybody came -> executor.run -> drain cancels
                -> engine.finish -> one Step message

Knows no model and no HTTP. When there is nothing to do it sleeps on its socket: an idle
server costs no CPU. When the other end of the socket is gone it ends, so no engine outlives
the server that started it.
"""

import select
import socket
import time
from collections.abc import Callable

from headrace.core.errors import HeadraceError
from headrace.core.plan import Plan
from headrace.core.ports import Executor
from headrace.core.request import Request
from headrace.engine.engine import Engine
from headrace.net.messages import (
    LENGTH_BYTES,
    Cancel,
    Expire,
    Expired,
    FromEngine,
    Leave,
    Problem,
    Refused,
    Step,
    Submit,
    Taken,
    ToEngine,
    frame,
    read_to_engine,
)

RECHECK_AFTER_S = 0.5
"""How long the engine must have been idle before it recounts its blocks: not between two requests."""

_READ_BYTES = 1 << 18


class Channel:
    """The engine's end of the socket: frames in without blocking, frames out."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # select() takes no descriptor beyond 1023, and a server with many clients hands out higher ones.
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._unread = bytearray()

    def send(self, message: FromEngine) -> None:
        """Blocks only when the HTTP process has not read for megabytes' worth of steps."""
        self._connection.sendall(frame(message))

    def receive(self, wait_s: float | None) -> list[ToEngine]:
        """All messages that are here; waits up to `wait_s` (None: for ever) for there to be bytes.

        Raises `EOFError` when the other end is gone.
        """
        while self._poll.poll(None if wait_s is None else wait_s * 1000):
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise EOFError
            self._unread += data
            wait_s = 0.0
        return self._whole_messages()

    def _whole_messages(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        start = 0
        while (body := start + LENGTH_BYTES) <= len(self._unread):
            end = body + int.from_bytes(self._unread[start:body], "big")
            if end > len(self._unread):
                break
            messages.append(read_to_engine(self._unread[body:end]))
            start = end
        if start:
            del self._unread[:start]
        return messages


class EngineLoop:
    """Drives one engine with the real clock until told to leave."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        channel: Channel,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._channel = channel
        self._clock = clock
        self._arrived: dict[str, Request] = {}  # came while a step ran; the scheduler sees them after it
        self._submissions = 0
        self._told_submissions = 0
        self._leaving = False
        self._idle_turns = 0

    def run(self) -> None:
        """Until `Leave`. Raises `EOFError` or `OSError` when the HTTP process is gone."""
        wait_s: float | None = 0.0
        while True:
            self._take_in(wait_s)
            if self._leaving:
                return
            self._submit_arrived()
            planning_ns = self._clock()
            plan = self._engine.plan(planning_ns)
            self._tell_who_is_taken()
            if plan is None:
                wait_s = self._rest()
            else:
                self._step(plan, planning_ns)
                wait_s, self._idle_turns = 0.0, 0

    def _take_in(self, wait_s: float | None) -> None:
        """Cancels take effect at once; submissions wait for the step to end, as in vLLM."""
        for message in self._channel.receive(wait_s):
            match message:
                case Submit(request=request):
                    self._submissions += 1
                    self._arrived[request.request_id] = request
                case Cancel(request_id=request_id):
                    if self._arrived.pop(request_id, None) is None:
                        self._engine.cancel(request_id)
                case Expire(request_id=request_id):
                    if self._arrived.pop(request_id, None) or self._engine.cancel_waiting(request_id):
                        self._channel.send(Expired(request_id))
                case Leave():
                    self._leaving = True

    def _submit_arrived(self) -> None:
        for request in self._arrived.values():
            try:
                self._engine.submit(request, self._clock())
            except HeadraceError as error:
                self._channel.send(Refused(request.request_id, Problem.of(error)))
        self._arrived.clear()

    def _tell_who_is_taken(self) -> None:
        if self._told_submissions < self._submissions:
            self._told_submissions = self._submissions
            self._idle_turns = 0  # whoever is told of work is told of rest, though all of it has left again
            stats = self._engine.stats()
            self._channel.send(Taken(self._submissions, stats.running, stats.waiting))

    def _step(self, plan: Plan, planning_ns: int) -> None:
        running_ns = self._clock()
        result = self._executor.run(plan)
        self._take_in(0.0)
        finished_ns = self._clock()
        outputs = self._engine.finish(plan, result, finished_ns)
        self._forget_ended()
        self._channel.send(
            Step(
                finished_ns=finished_ns,
                outputs=outputs,
                stats=self._engine.stats(),
                tokens=plan.num_scheduled_tokens,
                sequences=len(plan.chunks),
                plan_ns=running_ns - planning_ns,
                forward_ns=result.forward_ns,
                sample_ns=result.sample_ns,
                blocks=self._engine.take_block_news(),
            )
        )

    def _rest(self) -> float | None:
        """Nothing to do. First say so, then recount the blocks once, then sleep. How long to wait."""
        self._idle_turns += 1
        if self._idle_turns == 1:
            self._forget_ended()
            self._channel.send(Step(self._clock(), [], self._engine.stats()))
            return RECHECK_AFTER_S
        if self._idle_turns == 2:
            self._engine.check()
        return None

    def _forget_ended(self) -> None:
        for work in self._engine.take_ended():
            self._executor.forget(work)
