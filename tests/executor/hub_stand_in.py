"""A model hub on loopback: the few endpoints that `huggingface_hub` asks, over real HTTP.

GET  /api/models/REPO/revision/REV     what files there are, their sizes and sums
GET  /api/models?search=WORD           names
HEAD and GET  /REPO/resolve/REV/FILE   the file, or from a byte on
"""

import hashlib
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """What the stand-in has, how it misbehaves, and what it was asked."""

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set[str])
    token: str = "hf_right"
    serves: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """By file: other bytes than those that its sum was made of."""
    drops_after: list[int] = field(default_factory=list[int])
    """After how many bytes the next downloads' connections break."""
    status: int | None = None
    """Answer everything with it."""
    architecture: str | None = None
    """What it read in the GGUF files of all repositories."""
    asked: list[str] = field(default_factory=list[str])
    url: str = ""

    def downloads(self) -> list[str]:
        return [line for line in self.asked if line.startswith("GET") and "/resolve/" in line]


@contextmanager
def running(hub: Hub) -> Generator[Hub, None, None]:
    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def _answer(self) -> None:
        self.of.asked.append(f"{self.command} {self.path} {self.headers.get('Range') or ''}".strip())
        path = urlsplit(self.path).path
        if self.of.status is not None:
            self._say(self.of.status, b"broken")
        elif path == "/api/models":
            word = parse_qs(urlsplit(self.path).query)["search"][0].lower()
            found = [{"id": name} for name in self.of.repositories if word[:6] in name.lower()]
            self._say(200, json.dumps(found).encode())
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            if self._may_have(match[1], match[2] or "main"):
                self._say(200, json.dumps(self._description(match[1])).encode())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if self._may_have(match[1], match[2]):
                self._send_file(match[1], match[3])
        else:
            self._say(404, b"")

    def _may_have(self, repository: str, revision: str) -> bool:
        right = self.headers.get("Authorization") == f"Bearer {self.of.token}"
        if repository not in self.of.repositories:
            self._say(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif repository in self.of.gated and not right:
            self._say(403 if self.headers.get("Authorization") else 401, b"", {"X-Error-Code": "GatedRepo"})
        elif revision not in {"main", "v1", COMMIT}:
            self._say(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def _description(self, repository: str) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, content in self.of.repositories[repository].items():
            each: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": _sum("", content)}
            if _is_large(name):
                each["lfs"] = {"sha256": _sum(name, content), "size": len(content), "pointerSize": 130}
            siblings.append(each)
        read = {"gguf": {"architecture": self.of.architecture}} if self.of.architecture else {}
        return {
            "id": repository,
            "modelId": repository,
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            **read,
        }

    def _send_file(self, repository: str, name: str) -> None:
        true = self.of.repositories[repository].get(name)
        if true is None:
            self._say(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        content = self.of.serves.get(name, true)
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        told = {"X-Repo-Commit": COMMIT, "ETag": f'"{_sum(name, true)}"', "Accept-Ranges": "bytes"}
        if begin:
            told["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        body = content[begin:]
        if self.command == "GET" and self.of.drops_after:
            self._begin(206 if begin else 200, len(body), told)
            self.wfile.write(body[: self.of.drops_after.pop(0)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self._say(206 if begin else 200, body, told)

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._begin(status, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_large(name: str) -> bool:
    return name.endswith((".gguf", ".bin", ".safetensors"))


def _sum(name: str, content: bytes) -> str:
    return (hashlib.sha256 if _is_large(name) else hashlib.sha1)(content).hexdigest()
