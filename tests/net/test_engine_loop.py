"""The engine's process from inside, over a real socket, without the process."""

import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from headrace.core.plan import Plan, Work
from headrace.core.ports import StepResult
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.executor.scripted import ScriptedExecutor
from headrace.net.engine_loop import Channel, EngineLoop
from headrace.net.messages import (
    LENGTH_BYTES,
    Cancel,
    FromEngine,
    Leave,
    Refused,
    Step,
    Submit,
    Taken,
    ToEngine,
    frame,
    read_from_engine,
)
from tests.net.scripted import SETTINGS


class Halting:
    """An executor whose steps wait for the test."""

    def __init__(self) -> None:
        self.inner = ScriptedExecutor(SETTINGS.num_gpu_blocks, SETTINGS.block_size)
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def run(self, plan: Plan) -> StepResult:
        self.begun.release()
        assert self.go_on.acquire(timeout=10)
        return self.inner.run(plan)

    def forget(self, work: Work) -> None:
        self.inner.forget(work)


class CountingEngine(Engine):
    """Says when its blocks are recounted."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.checked = threading.Event()

    def check(self) -> None:
        super().check()
        self.checked.set()


@dataclass
class Harness:
    ours: socket.socket
    engine: CountingEngine = field(default_factory=CountingEngine)
    executor: Halting = field(default_factory=Halting)

    def send(self, *messages: ToEngine) -> None:
        self.ours.sendall(b"".join(frame(message) for message in messages))

    def receive(self) -> FromEngine:
        return read_from_engine(self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES), "big")))

    def step(self) -> Step:
        """The next one; who is taken is told at its beginning."""
        message = self.receive()
        while isinstance(message, Taken):
            message = self.receive()
        assert isinstance(message, Step)
        return message

    def begin_step(self) -> None:
        assert self.executor.begun.acquire(timeout=10)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.ours.recv(size - len(data))
        return data


@pytest.fixture
def loop() -> Generator[Harness, None, None]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    harness = Harness(ours)
    thread = threading.Thread(target=EngineLoop(harness.engine, harness.executor, Channel(theirs)).run)
    thread.start()
    assert harness.step().stats.free_blocks == SETTINGS.usable_blocks, "first it says that it rests"
    yield harness
    harness.executor.go_on.release(1000)
    harness.send(Leave())
    thread.join(10)
    assert not thread.is_alive()
    ours.close()
    theirs.close()


def request(name: str, prompt_tokens: int = 20, max_tokens: int = 2) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=frozenset({7}))
    return Request(name, tuple(range(prompt_tokens)), sampling, 1, 2)


def test_one_message_carries_the_news_of_all_requests(loop: Harness) -> None:
    loop.executor.go_on.release(2)
    loop.send(Submit(request("a")), Submit(request("b")))
    first, second, rest = loop.step(), loop.step(), loop.step()
    assert [output.request_id for output in first.outputs] == ["a", "b"]
    assert (first.tokens, first.sequences) == (24, 2), "b shares the block that a computes in this step"
    assert first.outputs[0].first is not None
    assert first.outputs[0].first.num_prompt_tokens == 20
    assert (second.tokens, second.sequences) == (2, 2)
    assert [output.finish_reason for output in second.outputs] == [FinishReason.LENGTH] * 2
    assert (rest.tokens, rest.outputs) == (0, [])
    assert rest.stats.free_blocks == SETTINGS.usable_blocks
    assert loop.executor.inner.num_remembered == 0


def test_a_request_that_comes_during_a_step_takes_part_in_the_next(loop: Harness) -> None:
    loop.send(Submit(request("a")))
    loop.begin_step()
    loop.send(Submit(request("b")))
    loop.executor.go_on.release(3)
    assert [output.request_id for output in loop.step().outputs] == ["a"]
    second = loop.step()
    assert [output.request_id for output in second.outputs] == ["a", "b"]
    b = second.outputs[1].first
    assert b is not None


def test_at_the_beginning_of_a_step_it_is_said_who_is_before_the_scheduler(loop: Harness) -> None:
    loop.send(Submit(request("a")))
    assert loop.receive() == Taken(1, running=1, waiting=0)
    loop.begin_step()
    loop.send(
        Submit(request("huge", prompt_tokens=600)), Submit(request("b")), Submit(request("c")), Cancel("c")
    )
    loop.executor.go_on.release(1)
    loop.step()
    assert isinstance(loop.receive(), Refused)
    assert loop.receive() == Taken(4, running=2, waiting=0), "who was refused or left does not wait either"


def test_a_cancel_during_a_step_gives_the_blocks_back_when_the_step_ends(loop: Harness) -> None:
    loop.send(Submit(request("a")))
    loop.begin_step()
    loop.send(Cancel("a"))
    loop.executor.go_on.release(1)
    step = loop.step()
    assert step.outputs == []
    assert step.stats.free_blocks == SETTINGS.usable_blocks


def test_a_cancel_that_overtakes_the_scheduler_undoes_the_submission(loop: Harness) -> None:
    loop.send(Submit(request("a")))
    loop.begin_step()
    loop.send(Submit(request("b")), Cancel("b"), Cancel("never heard of"))
    loop.executor.go_on.release(2)
    assert [loop.step().stats.waiting, loop.step().stats.waiting] == [0, 0]
    assert loop.step().tokens == 0


def test_what_never_fits_is_refused_and_the_others_run(loop: Harness) -> None:
    loop.executor.go_on.release(2)
    loop.send(Submit(request("huge", prompt_tokens=600)), Submit(request("a")))
    refusal = loop.receive()
    assert isinstance(refusal, Refused)
    assert refusal.request_id == "huge"
    assert "600" in str(refusal.problem.error())
    assert [output.request_id for output in loop.step().outputs] == ["a"]


@pytest.mark.slow
def test_the_blocks_are_recounted_when_the_engine_has_come_to_rest(loop: Harness) -> None:
    loop.executor.go_on.release(2)
    loop.send(Submit(request("a")))
    for _ in range(3):
        loop.step()
    loop.engine.checked.clear()
    assert loop.engine.checked.wait(5)


def test_frames_may_be_cut_anywhere() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        raw = frame(Submit(request("a"))) + frame(Cancel("a")) + frame(Leave())
        received: list[ToEngine] = []
        for place in range(0, len(raw), 7):
            ours.sendall(raw[place : place + 7])
            received += channel.receive(1.0)
        assert received == [Submit(request("a")), Cancel("a"), Leave()]
        ours.close()
        with pytest.raises(EOFError):
            channel.receive(None)
