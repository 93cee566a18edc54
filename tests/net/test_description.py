"""`/openapi.json` and the server agree: what is declared happens, and nothing else does."""

import importlib.util
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.net.admission import Bounds
from headrace.net.door import Door
from headrace.net.openapi import openapi
from headrace.net.reading import SMALLEST_BODY_LIMIT
from tests.net.http import connected, get, post, read_answer
from tests.net.scripted import SETTINGS, OnceRecipe, ScriptedRecipe
from tests.net.serving import RunningServer, running, service
from tests.net.waiting import wait_until

GENERATE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
}
BODIES = GENERATE | {"/tokenize": {"prompt": "Hello"}, "/detokenize": {"tokens": [72]}}
Seen = defaultdict[str, set[int]]


@pytest.mark.slow
def test_every_declared_status_is_one_that_the_server_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """401, 408 and 504 were given and not declared."""
    seen = Seen(set)
    with running(service()) as server:
        _ask_well_and_badly(server, seen)
        monkeypatch.setattr(Door, "body_within_s", 0.1)
        for path in BODIES:
            seen[path].add(_stalled(server, path))
        monkeypatch.undo()
    with running(service(api_keys=("key",))) as server:
        _ask(server, seen, BODIES)
    with running(service(bounds=Bounds(max_num_queued_reqs=0))) as server:
        _ask(server, seen, GENERATE)
    with running(service(ScriptedRecipe(step_s=0.05), bounds=Bounds(request_timeout_s=0.1))) as server:
        _ask(server, seen, GENERATE)
    with running(service(OnceRecipe(tmp_path / "started"))) as server:
        _without_an_engine(server, seen)
    assert seen == {
        f"{path}": {int(status) for operation in of.values() for status in operation["responses"]}
        for path, of in openapi()["paths"].items()
    }


def _ask(server: RunningServer, seen: Seen, bodies: dict[str, dict[str, Any]]) -> None:
    for path, body in bodies.items():
        seen[path].add(post(server.port, path, body).status)
    for path, of in openapi()["paths"].items():
        if "get" in of:
            seen[path].add(get(server.port, path).status)


def _ask_well_and_badly(server: RunningServer, seen: Seen) -> None:
    _ask(server, seen, BODIES)
    for path, body in BODIES.items():
        too_large = b"x" * (SMALLEST_BODY_LIMIT + 1)
        for bad in (b"{", body | {"model": "another"}, too_large):
            seen[path].add(post(server.port, path, bad).status)


def _stalled(server: RunningServer, path: str) -> int:
    with connected(server.port) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode())
        return read_answer(connection).status


def _without_an_engine(server: RunningServer, seen: Seen) -> None:
    server.kill_engine()
    wait_until(lambda: get(server.port, "/health").status == 503, "it is noticed")
    for path in ("/health", "/ping"):
        seen[path].add(get(server.port, path).status)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed")
def test_requests_made_from_the_description_are_answered_as_described(tmp_path: Path) -> None:
    """schemathesis: values at and beyond every declared bound, then random ones, right and wrong.

    Answers are short and few fit, so that the time goes into requests. One worker: CPython 3.11 can lose
    count when several threads parse Python at once, as schemathesis does.
    """
    program = Path(sys.executable).with_name("schemathesis")
    bounds = ["--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1", "--workers", "1"]
    with running(service(ScriptedRecipe(replace(SETTINGS, max_model_len=128), b"Hi"))) as server:
        words = ["run", f"{server.url}/openapi.json", "--checks", ",".join(CHECKS)]
        done = subprocess.run(
            [program, *words, *bounds], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {len(openapi()['paths'])}" in done.stdout, done.stdout


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
"""Not among them: whether all is accepted that has the right types. A prompt can still be too long."""
