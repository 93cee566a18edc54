"""Where a server listens, how what it says is encrypted, and who is turned away before there is a connection.

bind(host, port) | bind_uds(path) -> Listener --accept--> a connection, while file descriptors last
"""

import contextlib
import errno
import logging
import resource
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import BadInput, Busy
from headrace.net.replies import error_json

_log = logging.getLogger(__name__)

BACKLOG = 2048

KEPT_DESCRIPTORS = 64
"""Not for clients: an engine that is started again needs some, and files are opened."""

TURNED_AWAY_AT_ONCE = 100
"""Then the event loop does something else first."""

TOLD_EVERY_S = 10.0
RETRY_AFTER_S = 1.0

NOT_READ_FOR_MS = 60_000
"""A client that takes nothing for so long is cut off by the system (Linux), even when all is written."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. Checked before the model is loaded."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    """Whether clients must show a certificate: 0 no, 1 may, 2 must (Python's `ssl.CERT_*`, as vLLM)."""

    def check(self) -> None:
        """Raises `BadInput` when the files cannot be used."""
        if self.cert_reqs and not self.ca_certs:
            raise BadInput(
                f"--ssl-cert-reqs {self.cert_reqs} without --ssl-ca-certs: no client's certificate would do",
                "name who signs them: --ssl-ca-certs FILE",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile)
            if self.ca_certs:
                context.load_verify_locations(self.ca_certs)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(name) for name in (self.certfile, self.keyfile, self.ca_certs) if name)
            raise BadInput(
                f"cannot use the certificate files {files}: {error.strerror or error}",
                "--ssl-certfile and --ssl-keyfile take PEM files that belong together",
            ) from error


@dataclass(slots=True)
class _TurnedAway:
    """How many, and when somebody was last told."""

    since_told: int = 0
    told_at: float = field(default_factory=lambda: time.monotonic() - TOLD_EVERY_S)

    def count(self, most: int) -> None:
        self.since_told += 1
        now = time.monotonic()
        if now - self.told_at >= TOLD_EVERY_S:
            _log.warning(
                "headrace: connections turned away with 503: %d; the %d file descriptors that clients may "
                "have are in use (raise `ulimit -n`)",
                self.since_told,
                most,
            )
            self.since_told, self.told_at = 0, now


class Listener(socket.socket):
    """Turns clients away before the last descriptor is gone.

    Without one, asyncio cannot take a connection and so cannot get rid of it: it tries 2,048 times a
    second, with a traceback each, and nobody else is served.
    """

    def __init__(self, family: int) -> None:
        # asyncio sends small pieces at once (TCP_NODELAY) only on sockets that say that they are TCP's.
        # Without that the system holds the body of a short answer back for 40 ms.
        protocol = 0 if family == socket.AF_UNIX else socket.IPPROTO_TCP
        super().__init__(family, socket.SOCK_STREAM, protocol)
        self._turned_away = _TurnedAway()

    def open(self) -> None:
        """Take connections."""
        # Connections inherit it: with it, those that have ended do not keep the port for another minute.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        most = _most_descriptors()
        for _ in range(TURNED_AWAY_AT_ONCE):
            connection, address = super().accept()
            if connection.fileno() < most:  # the system gives the lowest number that is free
                return connection, address
            self._turned_away.count(most)
            with connection, contextlib.suppress(OSError):
                connection.send(_FULL, socket.MSG_DONTWAIT)
        raise BlockingIOError


class UnixListener(Listener):
    """Takes its file away with it, unless somebody else has put another one there."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX)
        self._path = Path(path)
        self._inode: int | None = None

    def take(self) -> None:
        """Listens at once: until then another server would take the file for a dead one's."""
        self.bind(str(self._path))
        self._inode = self._path.stat().st_ino
        self.listen(BACKLOG)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            if self._inode is not None and self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._inode = None


def bind(host: str, port: int) -> Listener:
    """The port, taken but not yet listening. Raises `BadInput` if somebody has it."""
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, NOT_READ_FOR_MS)
    try:
        listener.bind((host, port))
        # With it a second server could take the port too, and would hear of this one after loading its model.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def bind_uds(path: str) -> UnixListener:
    """A Unix socket; who comes before the server is ready waits.

    Raises `BadInput` if somebody serves there.
    """
    listener = UnixListener(path)
    try:
        _remove_what_nobody_serves(Path(path))
        listener.take()
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = _who_is_there(Path(path)) if in_use else error.strerror or str(error)
        raise BadInput(f"cannot listen on the socket {path}: {reason}", "give another --uds") from error
    return listener


def url_of(listener: socket.socket, scheme: str) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _cannot_listen(host: str, port: int, error: Exception) -> BadInput:
    """`error` for a person."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return BadInput(
            f"port {port} on {host} is in use",
            "stop the server that has it, or give another --port (0: any free one)",
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return BadInput(f"cannot listen on {host}, port {port}: {reason}", "check --host and --port")


def _remove_what_nobody_serves(path: Path) -> None:
    """A server that was killed leaves its socket behind."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return  # one that serves, with a full queue


def _who_is_there(path: Path) -> str:
    return "somebody serves there" if path.is_socket() else "there is a file of that name"


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 31) if soft == resource.RLIM_INFINITY else soft - min(KEPT_DESCRIPTORS, soft // 2)


def _full() -> bytes:
    """Said without having read what is asked."""
    error = Busy("the server has as many connections as it can take", RETRY_AFTER_S)
    body = msgspec.json.encode(error_json(error))
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"retry-after: {RETRY_AFTER_S:.0f}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_FULL = _full()
