"""HTTPS, with certificates made here: who is let in, and what becomes of those who speak something else."""

import socket
import ssl
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from headrace.core.errors import BadInput
from headrace.net.listening import Tls
from tests.net.hostile import GOOD, asked, sent
from tests.net.processes import ServerProcess, Start, serving

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Papers:
    """PEM files of one authority."""

    authority: Path
    server: Path
    client: Path
    stranger: Path
    """A certificate that somebody else has signed."""


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    ours, theirs = trustme.CA(), trustme.CA()
    made = Papers(*(folder / f"{name}.pem" for name in ("authority", "server", "client", "stranger")))
    ours.cert_pem.write_to_path(made.authority)
    ours.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made.server)
    ours.issue_cert("somebody").private_key_and_cert_chain_pem.write_to_path(made.client)
    theirs.issue_cert("stranger").private_key_and_cert_chain_pem.write_to_path(made.stranger)
    return made


@pytest.fixture(scope="module")
def server(papers: Papers) -> Generator[ServerProcess, None, None]:
    with serving(Start(certfile=str(papers.server))) as process:
        yield process


@pytest.fixture(scope="module")
def strict_server(papers: Papers) -> Generator[ServerProcess, None, None]:
    start = Start(certfile=str(papers.server), ca_certs=str(papers.authority), cert_reqs=ssl.CERT_REQUIRED)
    with serving(start) as process:
        yield process


def talk(port: int, papers: Papers, raw: bytes, mine: Path | None = None) -> bytes:
    """Over TLS, having checked who serves."""
    context = ssl.create_default_context(cafile=str(papers.authority))
    if mine is not None:
        context.load_cert_chain(mine)
    with (
        socket.create_connection(("127.0.0.1", port), 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(raw)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
        return received


def is_cut_off(port: int, papers: Papers, mine: Path | None) -> bool:
    """In TLS 1.3 a client hears of it only with the first thing it reads."""
    try:
        return talk(port, papers, sent(GOOD), mine) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_who_trusts_the_authority_is_served(server: ServerProcess, papers: Papers) -> None:
    assert talk(server.port, papers, sent(GOOD)).startswith(b"HTTP/1.1 200")
    context = ssl.create_default_context(cafile=str(papers.authority))
    with urllib.request.urlopen(f"https://localhost:{server.port}/v1/models", context=context) as answer:
        assert b'"id":"scripted"' in answer.read()
    assert f"serving scripted at https://127.0.0.1:{server.port}\n" in server.log


def test_who_does_not_trust_the_authority_finds_out(server: ServerProcess) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 20) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("raw", [asked("GET", "/health"), b"\x16\x03\x01\x00\x05hello" * 9, b"\x00" * 5000])
def test_what_is_no_tls_is_cut_off_and_not_answered(
    server: ServerProcess, papers: Papers, raw: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(raw)
        try:
            received = connection.recv(4096)
        except ConnectionResetError:
            received = b""
    assert b"HTTP" not in received
    assert talk(server.port, papers, sent(GOOD)).startswith(b"HTTP/1.1 200")


def test_handshakes_that_are_cut_or_never_begun_hold_up_nobody(server: ServerProcess, papers: Papers) -> None:
    hello = ssl.MemoryBIO()
    half = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    first_words = hello.read()
    begun = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(100)]
    for place, connection in enumerate(begun):
        connection.sendall(first_words[: place * len(first_words) // 99])
    assert talk(server.port, papers, sent(GOOD)).startswith(b"HTTP/1.1 200")
    for connection in begun:
        connection.close()
    assert talk(server.port, papers, sent(GOOD)).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in server.log


def test_who_shows_a_certificate_of_the_authority_is_let_in(
    strict_server: ServerProcess, papers: Papers
) -> None:
    answer = talk(strict_server.port, papers, sent(GOOD), papers.client)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("shown", [None, "stranger"])
def test_who_shows_none_or_a_strangers_is_not(
    strict_server: ServerProcess, papers: Papers, shown: str | None
) -> None:
    mine = papers.stranger if shown else None
    assert is_cut_off(strict_server.port, papers, mine)
    assert talk(strict_server.port, papers, sent(GOOD), papers.client).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in strict_server.log


@pytest.mark.parametrize("shown", [None, "client"])
def test_where_a_certificate_is_optional_both_are_let_in(papers: Papers, shown: str | None) -> None:
    start = Start(certfile=str(papers.server), ca_certs=str(papers.authority), cert_reqs=ssl.CERT_OPTIONAL)
    with serving(start) as process:
        mine = papers.client if shown else None
        assert talk(process.port, papers, sent(GOOD), mine).startswith(b"HTTP/1.1 200")
        assert is_cut_off(process.port, papers, papers.stranger)


@pytest.mark.parametrize("cert_reqs", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
def test_certificates_that_nobody_could_have_are_not_asked_for(papers: Papers, cert_reqs: int) -> None:
    """Without an authority every client was refused, one by one."""
    with pytest.raises(BadInput, match="without --ssl-ca-certs"):
        Tls(str(papers.server), cert_reqs=cert_reqs).check()


def test_a_key_that_belongs_to_another_certificate_is_refused_at_the_start(papers: Papers) -> None:
    with pytest.raises(BadInput, match="cannot use the certificate files"):
        Tls(str(papers.authority), str(papers.stranger)).check()
