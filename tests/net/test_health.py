"""Whether `/health` tells the truth about the engine, and what becomes of one that hangs."""

import asyncio
import os
import signal
import time

import pytest

from headrace.net import engine_client, pulse
from headrace.net.engine_link import launch
from headrace.net.messages import Cancel
from tests.net.http import get, post, posted
from tests.net.scripted import ScriptedRecipe
from tests.net.serving import running, service
from tests.net.test_endings import read_rest
from tests.net.test_faults import CHAT, LONG, SHORT, SLOW
from tests.net.test_leaving import assert_nothing_is_left
from tests.net.waiting import read_past_first_event, wait_until


@pytest.mark.slow
def test_an_engine_that_hangs_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was waited for without end, and /health said that all was well."""
    monkeypatch.setattr(engine_client, "SILENT_AFTER_S", 0.4)
    with running(service(SLOW)) as server:
        hanging = server.engine_pid
        assert hanging is not None
        with posted(server.port, CHAT, LONG) as stream:
            read_past_first_event(stream)
            os.kill(hanging, signal.SIGSTOP)
            rest = read_rest(stream)
            assert b'"error":{"message":"the engine was ended: it said nothing for' in rest
            assert b"lower --max-num-batched-tokens" in rest
        wait_until(lambda: server.engine_pid not in {hanging, None}, "another engine")
        wait_until(lambda: get(server.port, "/health").status == 200, "it is ready")
        assert post(server.port, CHAT, SHORT).status == 200
        assert_nothing_is_left(server)


@pytest.mark.slow
def test_health_says_at_once_that_the_engine_was_killed_or_stopped() -> None:
    """It was 200 until the memory of a killed process was taken apart, and of a stopped one for ever."""
    with running(service()) as server:
        assert get(server.port, "/health").status == 200
        stopped = server.engine_pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: get(server.port, "/health").status == 503, "it is stopped")
        assert "is stopped by a signal" in get(server.port, "/health").error
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: get(server.port, "/health").status == 200, "it goes on")
        server.kill_engine()
        away = get(server.port, "/health")
        assert (away.status, int(away.headers["retry-after"]) >= 1) == (503, True)


@pytest.mark.slow
def test_health_notices_an_engine_that_is_silent_for_longer_than_a_step_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "LEAST_PATIENCE_S", 0.3)
    monkeypatch.setattr(pulse, "UNKNOWN_PATIENCE_S", 0.3)
    with running(service(ScriptedRecipe(step_s=1.5))) as server:
        with posted(server.port, CHAT, SHORT):
            wait_until(lambda: get(server.port, "/health").status == 503, "it is silent")
            assert "its largest step should take no more than 0 s" in get(server.port, "/health").error
        wait_until(lambda: get(server.port, "/health").status == 200, "it has said something")


@pytest.mark.slow
def test_an_engine_that_does_not_read_is_ended_all_the_same() -> None:
    """A server whose engine had stopped reading, with megabytes on their way to it, could not be stopped."""

    async def end() -> None:
        link = await launch(ScriptedRecipe())
        assert link.pid is not None
        os.kill(link.pid, signal.SIGSTOP)
        for _ in range(50):
            link.send(Cancel("x" * 100_000))
        await asyncio.wait_for(link.end(0.1), 20)

    asyncio.run(end())


@pytest.mark.slow
def test_an_engine_that_has_nothing_to_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "SILENT_AFTER_S", 0.05)
    with running(service()) as server:
        quiet = server.engine_pid
        time.sleep(0.5)  # nobody waits for it: there is nothing to wait for
        assert server.engine_pid == quiet
