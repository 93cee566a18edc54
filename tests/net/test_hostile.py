"""Whatever comes over the wire is answered in OpenAI's shape, harms nobody after it, and is in no log."""

import json
import socket
from collections.abc import Generator

import pytest

from tests.net.hostile import CASES, GOOD, MARKER, Case, asked, body, chunked, sent
from tests.net.http import Answer, get, posted, read_answer
from tests.net.processes import ServerProcess, Start, serving
from tests.net.test_leaving import CHAT, gauge
from tests.net.waiting import read_past_first_event, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Generator[ServerProcess, None, None]:
    """Logs all there is to log."""
    with serving(Start(debug=True, step_s=0.001)) as process:
        yield process


def talk(port: int, raw: bytes) -> bytes:
    """All that comes back until the connection ends or nothing more comes."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(raw)
        try:
            while data := connection.recv(1 << 16):
                received += data
        except ConnectionResetError:  # it closed before it had read all of that
            pass
    return received


def assert_all_is_well(server: ServerProcess) -> None:
    """The next one is served, nobody holds a block, and no prompt was written down."""
    assert b"HTTP/1.1 200" in talk(server.port, sent(GOOD))
    wait_until(lambda: gauge(server, "headrace:free_blocks") == 64, "all blocks are free again")
    assert server.popen.poll() is None
    assert "ERROR" not in server.log, "nothing that a client does is the server's error"
    assert MARKER not in server.log
    assert "Invalid HTTP" not in server.log, "a line for each would fill the disk for whoever sends enough"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_comes_is_answered_in_shape_and_harms_nobody(server: ServerProcess, case: Case) -> None:
    received = talk(server.port, case.raw)
    top, _, rest = received.partition(b"\r\n\r\n")
    assert int(top.split()[1]) == case.status, received[:500]
    assert case.says.encode() in received
    if case.status >= 400:
        error = json.loads(rest.split(b"HTTP/1.1 400")[0])["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == case.status
        assert error["message"]
    assert_all_is_well(server)


def test_what_follows_a_request_with_two_lengths_is_nobodys_request(server: ServerProcess) -> None:
    smuggled = asked("GET", "/v1/models")
    both = chunked(GOOD, headers=(f"Content-Length: {len(GOOD)}",)).replace(b"Connection: close\r\n", b"")
    received = talk(server.port, both + smuggled)
    assert received.count(b"HTTP/1.1") == 1, "the connection was used for what may be somebody else's"
    assert b"connection: close" in received.lower()


def test_an_answer_that_has_begun_is_not_followed_by_another(server: ServerProcess) -> None:
    """The body is refused at once; the chunks after it are no HTTP."""
    received = talk(server.port, chunked(b"x" * 3_000_000, end=b"ZZZ\r\n"))
    assert received.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert received.count(b"HTTP/1.1") == 1
    assert_all_is_well(server)


def test_requests_sent_ahead_are_answered_in_their_order(server: ServerProcess) -> None:
    kept = b"".join(
        sent(body(max_tokens=tokens)).replace(b"Connection: close\r\n", b"") for tokens in (1, 2, 3, 4)
    )
    received = talk(server.port, kept + sent(body(max_tokens=5)))
    tokens = [part.partition(b",")[0] for part in received.split(b'"completion_tokens":')[1:]]
    assert tokens == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_after_sending_ahead_is_missed_at_once(
    server: ServerProcess, stream: bool
) -> None:
    """uvicorn stopped listening to such a client, and its answer was computed to the end."""
    aborted = 'finished_reason="abort"'
    before = gauge(server, "vllm:request_success_total", aborted)
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        long = body(stream=stream, max_tokens=400, ignore_eos=True)
        connection.sendall(sent(long).replace(b"Connection: close\r\n", b"") + sent(GOOD))
        wait_until(lambda: gauge(server, "vllm:num_requests_running") == 1, "it runs")
    wait_until(lambda: gauge(server, "vllm:request_success_total", aborted) == before + 1, "it is missed")
    assert_all_is_well(server)


def test_a_client_that_closes_its_half_has_left(server: ServerProcess) -> None:
    """As under uvicorn everywhere: who may still read and who is gone look the same."""
    before = gauge(server, "vllm:request_success_total", 'finished_reason="abort"')
    with posted(server.port, CHAT, json.loads(body(stream=True, max_tokens=400, ignore_eos=True))) as half:
        read_past_first_event(half)
        half.shutdown(socket.SHUT_WR)
        while half.recv(1 << 16):
            pass
    wait_until(
        lambda: gauge(server, "vllm:request_success_total", 'finished_reason="abort"') == before + 1,
        "its request has ended",
    )
    assert_all_is_well(server)


def test_a_body_is_asked_for_before_it_is_sent(server: ServerProcess) -> None:
    raw = sent(GOOD, "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(raw[: -len(GOOD)])
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 Continue\r\n")
        connection.sendall(GOOD)
        assert read_answer(connection).status == 200


def test_a_page_from_anywhere_may_ask(server: ServerProcess) -> None:
    """vLLM's default; without it no web page can use the server."""
    preflight = asked(
        "OPTIONS",
        CHAT,
        "Origin: http://page.example",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type",
    )
    allowed = talk(server.port, preflight)
    assert allowed.startswith(b"HTTP/1.1 200")
    assert b"access-control-allow-origin: *" in allowed
    assert b"access-control-allow-headers: authorization,content-type" in allowed
    answered = talk(server.port, sent(GOOD, "Origin: http://page.example"))
    assert b"access-control-allow-origin: *" in answered
    assert b"access-control" not in talk(server.port, sent(GOOD)), "nothing is added for others"


def test_the_server_knows_no_other_way_in(server: ServerProcess) -> None:
    refused: Answer = get(server.port, "/v1/models/../../metrics")
    assert refused.status == 404
