"""A server on the loopback that answers with pages it was given, one after another; the last one stays."""

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def pages(by_path: Mapping[str, Sequence[str | None]]) -> Generator[str, None, None]:
    """Gives the address. A page that is None breaks the connection off; an unknown path is 404."""
    asked = dict.fromkeys(by_path, 0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            known = by_path.get(path)
            page = known[min(asked[path], len(known) - 1)] if known else ""
            if known:
                asked[path] += 1
            if page is None:
                self.close_connection = True
                return
            body = page.encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
