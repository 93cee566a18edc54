"""Connections that are used again: for what they may be, and that no request suffers from it."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.timeline import FailureKind
from headrace.net.client import HttpSender

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"
END = b"0\r\n\r\n"


class Visit:
    """One request as the server sees it."""

    def __init__(self, connection: int, place: int, head: str, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self.place = place
        """On its connection, from 0."""
        self.head = head
        self.tokens = 0
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def events(self, fields: bytes = b"", done: bool = True) -> None:
        """An answer without its last chunk."""
        self.write(HEAD % fields)
        for place in range(self.tokens):
            finish = "length" if place == self.tokens - 1 else None
            self._chunk(json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": finish}]}))
        if done:
            self._chunk("[DONE]")

    def _chunk(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.write(b"%x\r\n%b\r\n" % (len(event), event))

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


Behaviour = Callable[[Visit], Awaitable[bool]]
"""Answers; whether the server goes on listening on that connection."""


@contextlib.asynccontextmanager
async def keeping_server(behave: Behaviour) -> AsyncGenerator[tuple[str, list[Visit]]]:
    visits, connections, serving = list[Visit](), 0, set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        number, place, goes_on = connections, 0, True
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while goes_on:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].split("\r\n")[0])
                visit = Visit(number, place, head, writer)
                visit.tokens = json.loads(await reader.readexactly(length))["max_tokens"]
                visits.append(visit)
                goes_on, place = await behave(visit), place + 1
        writer.close()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connected(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", visits
    finally:
        server.close()
        for task in tuple(serving):
            task.cancel()


Settled = Callable[[HttpSender], bool]


def is_kept(sender: HttpSender) -> bool:
    return bool(sender._host._idle)


def is_not_kept(sender: HttpSender) -> bool:
    return not sender._host._idle


def in_turn(
    behave: Behaviour,
    requests: int = 2,
    *,
    kept_s: float = 1.0,
    timeout_s: float = 5.0,
    settled: Settled = lambda _: True,
) -> tuple[list[Answer | Broken], list[Visit], HttpSender]:
    """One request after the other, each when all is as wanted for it."""

    async def all_of_it() -> tuple[list[Answer | Broken], list[Visit], HttpSender]:
        async with keeping_server(behave) as (url, visits):
            sender = HttpSender(url, "m", clock=time.monotonic, timeout_s=timeout_s, kept_s=kept_s)
            async with sender:
                results: list[Answer | Broken] = []
                for number in range(requests):
                    results.append(await sender.send(ask(number)))
                    for _ in range(2_000):
                        if settled(sender):
                            break
                        await asyncio.sleep(0.001)
            return results, visits, sender

    return asyncio.run(all_of_it())


def ask(number: int, tokens: int = 3) -> Ask:
    return Ask(str(number), "c", f"{number} words", tokens)


async def well(visit: Visit) -> bool:
    visit.events()
    visit.write(END)
    return True


async def end_by_itself(visit: Visit) -> bool:
    """As uvicorn writes it."""
    visit.events()
    await asyncio.sleep(0.005)
    visit.write(END)
    return True


async def refuses_whole(visit: Visit) -> bool:
    visit.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\nno")
    return True


@pytest.mark.parametrize("behave", [well, end_by_itself, refuses_whole])
def test_the_next_request_has_the_connection_of_the_one_before(behave: Behaviour) -> None:
    results, visits, sender = in_turn(behave, 3, settled=is_kept)

    assert len({type(result) for result in results}) == 1
    assert [visit.connection for visit in visits] == [1, 1, 1]
    assert (sender.connections, sender.sent_again) == (1, 0)
    assert "connection: close" not in visits[0].head


def test_each_request_may_have_a_connection_of_its_own() -> None:
    results, visits, sender = in_turn(well, 2, kept_s=0.0)

    assert all(isinstance(result, Answer) for result in results)
    assert [visit.connection for visit in visits] == [1, 2]
    assert all("connection: close" in visit.head for visit in visits)
    assert sender.connections == 2


def test_one_that_has_been_idle_for_long_is_not_used_again() -> None:
    _, visits, _ = in_turn(well, 2, kept_s=1e-9)

    assert [visit.connection for visit in visits] == [1, 2]


async def says_it_closes(visit: Visit) -> bool:
    visit.events(b"Connection: close\r\n")
    visit.write(END)
    await asyncio.sleep(0.02)  # its connection is still open when the next request is due
    return False


async def answers_twice(visit: Visit) -> bool:
    await well(visit)
    return await well(visit)


async def mumbles_when_idle(visit: Visit) -> bool:
    await well(visit)
    await asyncio.sleep(0.005)
    visit.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    return True


async def never_ends_its_body(visit: Visit) -> bool:
    visit.events()
    await asyncio.sleep(60)
    return True


async def goes_on_after_its_end(visit: Visit) -> bool:
    visit.events()
    for _ in range(100):
        visit.write(b"2\r\n\n\n\r\n")
        await asyncio.sleep(0.001)
    return True


@pytest.mark.parametrize(
    "behave", [says_it_closes, answers_twice, mumbles_when_idle, never_ends_its_body, goes_on_after_its_end]
)
def test_a_connection_that_is_not_idle_and_whole_is_not_used_again(behave: Behaviour) -> None:
    results, visits, sender = in_turn(behave, 3, settled=is_not_kept)

    assert [type(result) for result in results] == [Answer] * 3
    assert [visit.connection for visit in visits] == [1, 2, 3]
    assert sender.sent_again == 0


def test_answers_that_never_end_do_not_pile_up() -> None:
    async def all_of_it() -> int:
        async with (
            keeping_server(never_ends_its_body) as (url, _),
            HttpSender(url, "m", clock=time.monotonic, kept_s=0.02) as sender,
        ):
            for number in range(10):
                await sender.send(ask(number))
                await asyncio.sleep(0.01)
            return len(sender._host._open)

    assert asyncio.run(all_of_it()) <= 4


async def closed_before_it_was_asked_again(visit: Visit) -> bool:
    return await well(visit) if visit.place == 0 else False


async def resets_when_asked_again(visit: Visit) -> bool:
    if visit.place == 0:
        return await well(visit)
    visit.reset()
    return False


@pytest.mark.parametrize("behave", [closed_before_it_was_asked_again, resets_when_asked_again])
def test_a_request_into_a_closing_connection_is_sent_again_on_a_new_one(behave: Behaviour) -> None:
    results, visits, sender = in_turn(behave)

    assert [type(result) for result in results] == [Answer, Answer]
    assert [(visit.connection, visit.place) for visit in visits] == [(1, 0), (1, 1), (2, 0)]
    assert sender.sent_again == 1


def test_it_is_sent_again_once_and_on_a_new_connection_never() -> None:
    async def closes_all_but_the_first(visit: Visit) -> bool:
        return await well(visit) if (visit.connection, visit.place) == (1, 0) else False

    results, visits, _ = in_turn(closes_all_but_the_first, 3)

    assert [type(result) for result in results] == [Answer, Broken, Broken]
    assert [(visit.connection, visit.place) for visit in visits] == [(1, 0), (1, 1), (2, 0), (3, 0)]


def test_who_has_begun_to_answer_is_not_asked_again() -> None:
    async def begins(visit: Visit) -> bool:
        if visit.place:
            visit.write(HEAD[:9])
            return False
        return await well(visit)

    results, visits, _ = in_turn(begins)

    assert isinstance(results[1], Broken)
    assert results[1].kind is FailureKind.CUT
    assert len(visits) == 2


def test_who_gives_up_after_a_while_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had the request; to send it again would hide what became of the first."""
    monkeypatch.setattr("headrace.net.exchange.STALE_S", 0.01)

    async def gives_up(visit: Visit) -> bool:
        if visit.place:
            await asyncio.sleep(0.05)
            return False
        return await well(visit)

    results, visits, _ = in_turn(gives_up)

    assert isinstance(results[1], Broken)
    assert results[1].kind is FailureKind.CUT
    assert len(visits) == 2


def test_a_connection_whose_request_timed_out_is_not_used_again() -> None:
    async def late(visit: Visit) -> bool:
        if visit.connection == 1 and visit.place:
            await asyncio.sleep(60)
        return await well(visit)

    results, visits, _ = in_turn(late, 3, timeout_s=0.2)

    assert [type(result) for result in results] == [Answer, Broken, Answer]
    assert [visit.connection for visit in visits] == [1, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_every_request_ends_once_and_with_its_own_answer(seed: int) -> None:
    """Whatever became of those before it on its connection."""
    chance = random.Random(seed)

    async def as_it_happens(visit: Visit) -> bool:
        await asyncio.sleep(chance.random() * 0.004)
        behave = chance.choice(
            [well, well, end_by_itself, says_it_closes, refuses_whole, resets_when_asked_again]
        )
        return await behave(visit)

    async def all_of_it() -> list[Answer | Broken]:
        async with (
            keeping_server(as_it_happens) as (url, _),
            HttpSender(url, "m", clock=time.monotonic, timeout_s=5) as sender,
        ):
            results: dict[int, Answer | Broken] = {}
            numbers = iter(range(200))

            async def one_after_the_other() -> None:
                for number in numbers:
                    assert number not in results
                    results[number] = await sender.send(ask(number, 1 + number % 7))

            await asyncio.gather(*(one_after_the_other() for _ in range(8)))
            return [results[number] for number in range(200)]

    for number, result in enumerate(asyncio.run(all_of_it())):
        if isinstance(result, Answer):
            assert len(result.token_at) == 1 + number % 7
        else:
            assert result.kind is FailureKind.REFUSED or "connection" in result.reason, result
