"""Where a server listens besides a port, and how what it says is encrypted."""

import contextlib
import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import BadInput

Listener = socket.socket
"""For those who may not know sockets."""


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


def bind_uds(path: str) -> socket.socket:
    """A Unix socket, taken but not yet listening. Raises `BadInput` if somebody serves there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_what_nobody_serves(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "somebody serves there" if in_use else error.strerror or str(error)
        raise BadInput(f"cannot listen on the socket {path}: {reason}", "give another --uds") from error
    return listener


def _remove_what_nobody_serves(path: str) -> None:
    """A server that was killed leaves its socket behind."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
