"""Whatever a server does to whichever request, each that was due is in the result once, with its end."""

import asyncio
import gzip
import ssl

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.measuring import Target, run_timetable
from headrace.core.exchange import Arrival, Ask
from headrace.core.timeline import Failure, FailureKind, Timeline
from tests.net.awkward import Exchange, answer_well, awkward_server

EVENT = 'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
"""A whole answer."""


async def resets(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    exchange.reset()


async def half_a_line(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.send(b'data: {"choices": [{"delta": {"con')


async def torn_into_bytes(exchange: Exchange) -> None:
    await exchange.head()
    for byte in EVENT.encode():
        await exchange.send(bytes([byte]))


async def error_inside(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    await exchange.event({"error": {"message": "out of memory"}})


async def wrong_usage(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a", "stop")
    await exchange.usage(-7)


async def endless(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.text("and on ")


async def in_a_circle(exchange: Exchange) -> None:
    await exchange.head("307 Temporary Redirect", f"Location: {exchange.path}", "Content-Length: 0")


async def storm(exchange: Exchange) -> None:
    """Who waited as told would be done after the run's own timeout."""
    await exchange.json("429 Too Many Requests", {"error": "slow down"}, "Retry-After: 30")


async def half_a_chunk(exchange: Exchange) -> None:
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    await exchange.send(b'40\r\ndata: {"choices": [{"delta": {"content": "a"}}]}')


async def compressed(exchange: Exchange) -> None:
    """Nobody offered to understand that."""
    await exchange.head("200 OK", "Content-Type: text/event-stream", "Content-Encoding: gzip")
    await exchange.send(gzip.compress(EVENT.encode()))


async def unusual_lines(exchange: Exchange) -> None:
    """No space after the colon, CR and LF at the end, comments and other fields between."""
    await exchange.head()
    whole = EVENT.replace("data: ", "data:").replace("\n", "\r\n")
    await exchange.send(f": hello\r\n\r\nevent: message\r\nid: 7\r\n{whole}: bye\r\n".encode())


async def cut_characters(exchange: Exchange) -> None:
    """Each read ends within one: of two, of three and of four bytes."""
    await exchange.head()
    for byte in EVENT.replace('"a"', '"é€😀"').encode():
        await exchange.send(bytes([byte]))
        await asyncio.sleep(0)


async def silence(exchange: Exchange) -> None:
    await asyncio.sleep(30)


DEEDS = {
    "well": (answer_well, None),
    "torn": (torn_into_bytes, None),
    "wrong usage": (wrong_usage, None),
    "resets": (resets, FailureKind.CUT),
    "half a line": (half_a_line, FailureKind.CUT),
    "error inside": (error_inside, FailureKind.CUT),
    "endless": (endless, FailureKind.MALFORMED),
    "in a circle": (in_a_circle, FailureKind.REFUSED),
    "half a chunk": (half_a_chunk, FailureKind.CUT),
    "compressed": (compressed, FailureKind.MALFORMED),
    "unusual lines": (unusual_lines, None),
    "cut characters": (cut_characters, None),
    "storm": (storm, FailureKind.REFUSED),
    "silence": (silence, FailureKind.TIMED_OUT),
}


async def as_told(exchange: Exchange) -> None:
    """The prompt says what is to be done."""
    behave, _ = DEEDS[exchange.body["messages"][0]["content"]]
    await behave(exchange)


def arrivals(deeds: list[str], gap_s: float = 0.002) -> list[Arrival]:
    return [Arrival(gap_s * n, Ask(f"r{n}", "c", deed, 2)) for n, deed in enumerate(deeds)]


def kind_of(result: Timeline | Failure) -> FailureKind | None:
    return result.kind if isinstance(result, Failure) else None


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(DEEDS)), max_size=12))
def test_every_due_request_is_in_the_result_once_whatever_the_server_does(deeds: list[str]) -> None:
    with awkward_server(as_told) as url:
        results = asyncio.run(run_timetable(Target(url, "awkward"), arrivals(deeds), timeout_s=1.0))

    assert [result.request_id for result in results] == [f"r{n}" for n in range(len(deeds))]
    assert [kind_of(result) for result in results] == [DEEDS[deed][1] for deed in deeds]


@pytest.mark.slow
def test_a_burst_of_refusals_loses_nobody() -> None:
    deeds = ["storm", "well"] * 100
    with awkward_server(as_told) as url:
        results = asyncio.run(run_timetable(Target(url, "awkward"), arrivals(deeds, 0.0), timeout_s=20.0))

    assert [kind_of(result) for result in results] == [DEEDS[deed][1] for deed in deeds]


@pytest.mark.slow
def test_the_same_over_tls_and_a_certificate_that_nobody_knows_is_a_reason(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    deeds = ["well", "error inside", "torn", "half a line", "resets", "half a chunk", "storm"]
    known = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(known))

    with awkward_server(as_told, tls=context) as url:
        unknown = asyncio.run(run_timetable(Target(url, "awkward"), arrivals(["well"]), timeout_s=5.0))
        monkeypatch.setenv("SSL_CERT_FILE", str(known))
        results = asyncio.run(run_timetable(Target(url, "awkward"), arrivals(deeds), timeout_s=5.0))

    assert [kind_of(result) for result in results] == [DEEDS[deed][1] for deed in deeds]
    assert isinstance(unknown[0], Failure)
    assert unknown[0].kind is FailureKind.UNREACHABLE
    assert "no secure connection: " in unknown[0].reason
