"""Ten times more than is let in: who is admitted is served as ever, and who is told to come back gets in."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

import pytest

from headrace.net.admission import Bounds
from tests.net.http import get, post
from tests.net.scripted import ScriptedRecipe
from tests.net.serving import RunningServer, running, service
from tests.net.test_leaving import CHAT, assert_nothing_is_left

pytestmark = [pytest.mark.slow, pytest.mark.alone]

PLACES = 8
TIMES = 10
ASKED = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30, "ignore_eos": True}
STEP_S = 0.02


@dataclass
class Visits:
    """What one crowd saw."""

    tries: Counter[int] = field(default_factory=Counter[int])
    """How many clients got in at which try."""
    served_s: list[float] = field(default_factory=list[float])
    """Of those who got in: how long the try that succeeded took."""


def come_back_when_told(server: RunningServer, visits: Visits) -> None:
    for number in range(1, 20):
        began_at = time.monotonic()
        answer = post(server.port, CHAT, ASKED)
        if answer.status == 200:
            visits.served_s.append(time.monotonic() - began_at)
            visits.tries[number] += 1
            return
        assert answer.status == 503
        time.sleep(int(answer.headers["retry-after"]))  # as the answer says; there is nothing to wait for
    visits.tries[20] += 1


def test_who_comes_back_when_told_gets_in_and_whoever_is_in_is_served_as_ever() -> None:
    """All at once, ten for each place; each refused is given a later place than the one before."""
    bounds = Bounds(max_num_queued_reqs=PLACES)
    with running(service(ScriptedRecipe(step_s=STEP_S), bounds=bounds)) as server:
        alone = Visits()
        with ThreadPoolExecutor(PLACES) as few:  # a full house, but nobody refused
            for _ in range(2 * PLACES):
                few.submit(come_back_when_told, server, alone)
        assert set(alone.tries) == {1}
        crowded = Visits()
        with ThreadPoolExecutor(PLACES * TIMES) as crowd:
            for _ in range(PLACES * TIMES):
                crowd.submit(come_back_when_told, server, crowded)
        assert_nothing_is_left(server)
        assert get(server.port, "/health").status == 200
    assert crowded.tries.total() == PLACES * TIMES
    came_back = PLACES * TIMES - crowded.tries[1]
    assert came_back > PLACES
    assert crowded.tries[2] > came_back / 2, f"{crowded.tries}: told to come too early"
    assert crowded.tries[20] == 0
    assert median(crowded.served_s) < 3 * median(alone.served_s), "those inside wait for those outside"
