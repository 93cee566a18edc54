"""Faults made on purpose: when the doctor counts as right, what servers are asked, some of them for real."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from bench.faults.judging import judge, result
from bench.faults.loads import CHATS, Both, Prompts, chats, documents, held, open_loop
from bench.faults.pace import NoPace, Speed, decode_rate, prefill_rate
from bench.faults.running import Examined
from bench.faults.scenarios import CROWDS, FAULTS, LONGEST_DOCUMENT, Disturbance, Pace
from headrace.core.exchange import Answer, Ask

POOL, HEALTHY = "pool too small", "healthy"


def examined(*findings: dict[str, str], others: float = 0.0, waited: float = 0.0) -> Examined:
    return Examined({"findings": list(findings)}, 0, "", 25.0, others, waited)


def pace(target: str = "embedded", times: float = 1.0) -> Pace:
    """Of a machine that is so many times as fast as one that was measured."""
    return Pace(Speed(850.0 * times, 120.0 * times), CROWDS[target])


def finding(label: str, severity: str = "warning", claim: str = "", change: str = "") -> dict[str, str]:
    return {"label": label, "severity": severity, "claim": claim, "change": change}


THRASH = finding("preemption_thrash", claim="the pool is too small")


def test_what_must_be_named_counts_only_as_the_first_thing_said() -> None:
    other = finding("compute")
    assert judge("embedded", POOL, examined(THRASH, other)).right
    assert not judge("embedded", POOL, examined(other, THRASH)).right


def test_the_right_label_with_other_words_is_wrong() -> None:
    row = judge("embedded", POOL, examined(finding("preemption_thrash", claim="something is slow")))
    assert not row.right
    assert "does not say" in row.why


def test_a_healthy_server_may_get_notes_but_nothing_that_asks_for_a_change() -> None:
    assert judge("embedded", HEALTHY, examined()).right
    assert judge("embedded", HEALTHY, examined(finding("compute", "note"))).right
    assert not judge("embedded", HEALTHY, examined(finding("compute", "note"), finding("compute"))).right
    assert not judge("embedded", HEALTHY, examined(finding("other:undetermined", "note"))).right


def test_a_doctor_that_fails_or_says_nothing_is_wrong() -> None:
    failed = Examined(None, 2, "headrace: refused\n", 1.0, 0.0)
    assert judge("embedded", HEALTHY, failed).why == "no diagnosis, exit code 2"
    assert judge("embedded", POOL, examined()).why == "nothing was named"


def test_a_run_is_disturbed_where_others_computed_and_the_server_had_to_wait() -> None:
    assert judge("vllm", POOL, examined(THRASH, others=1.2, waited=0.8)).is_disturbed
    assert not judge("vllm", POOL, examined(THRASH, others=1.2, waited=0.0)).is_disturbed
    assert not judge("vllm", POOL, examined(THRASH, others=0.1, waited=0.8)).is_disturbed
    assert not judge("vllm", "CPU starved", examined(others=1.8, waited=1.5)).is_disturbed


def test_the_result_counts_each_target_by_itself() -> None:
    rows = [judge("embedded", POOL, examined(THRASH)), judge("embedded", HEALTHY, examined(THRASH))]
    said = result([*rows, judge("vllm", POOL, examined())])
    assert said["embedded"] == {
        "right": 1,
        "of": 2,
        "healthy_clean": False,
        "wrong": [HEALTHY],
        "disturbed": [],
    }
    assert said["vllm"] == {"right": 0, "of": 1, "healthy_clean": None, "wrong": [POOL], "disturbed": []}


def test_there_are_ten_faults_and_a_healthy_server() -> None:
    assert len(FAULTS) == 11
    assert [name for name, fault in FAULTS.items() if fault.expected is None] == [HEALTHY]


@pytest.mark.parametrize("target", CROWDS)
def test_a_servers_stopped_engine_is_the_last_thing_done_to_it(target: str) -> None:
    settings = [fault.settings.get(target, {}) for fault in FAULTS.values()]
    assert len({str(each) for each in settings}) == 1 + sum(a != b for a, b in pairwise(settings))
    after = dict(zip(FAULTS, [*settings[1:], None], strict=True))
    assert after["stopped engine"] != FAULTS["stopped engine"].settings.get(target, {})
    assert next(iter(FAULTS.values())).disturbance is Disturbance.STARTING


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("target", CROWDS)
def test_a_load_is_the_same_every_time_and_due_while_it_lasts(name: str, target: str) -> None:
    once, again = (FAULTS[name].load(pace(target), 30.0).first() for _ in range(2))
    assert list(once) == list(again)
    assert once
    assert all(0.0 <= arrival.due_at <= 30.0 for arrival in once)


def test_a_faster_machine_gets_more_to_do() -> None:
    """Loads sized for one machine made no fault on another: 3 and 4 of 11 were named there."""
    slow, fast = (len(FAULTS[HEALTHY].load(pace(times=times), 60.0).first()) for times in (0.3, 3.0))
    assert fast > 5 * slow
    document = max(len(ask.prompt.split()) for ask in asks("long documents", times=9.0))
    assert document == LONGEST_DOCUMENT > max(len(ask.prompt.split()) for ask in asks("long documents"))


def asks(name: str, times: float = 1.0) -> list[Ask]:
    return [arrival.ask for arrival in FAULTS[name].load(pace(times=times), 30.0).first()]


def answer(*token_at: float, prompt_tokens: int = 100) -> Answer:
    return Answer(10.0, token_at, "length", prompt_tokens, 0, None)


def test_a_machines_speed_is_told_from_its_answers() -> None:
    assert prefill_rate(answer(10.5, 11.0)) == pytest.approx(200.0)
    two = [answer(10.0, 11.0, 12.0, 13.0), answer(11.0, 11.5, 12.0, 12.5, 13.0)]
    assert decode_rate(two) == pytest.approx(3.0)
    with pytest.raises(NoPace):
        decode_rate([answer(10.0, 11.0), answer(12.0, 13.0)])


def test_beginnings_are_shared_where_they_are_meant_to_be() -> None:
    shared = chats(5.0, Prompts((5, 9), (4, 4), shared_words=50), 10.0, seed=1)
    assert len({tuple(arrival.ask.prompt.split()[:50]) for arrival in shared}) == 1
    own = chats(5.0, CHATS, 10.0, seed=1)
    assert len({tuple(arrival.ask.prompt.split()[:4]) for arrival in own}) == len(own)


def test_two_loads_together_keep_apart_whose_request_ended() -> None:
    streams = held(2, Prompts((5, 5), (4, 4)), 10.0, seed=1)
    both = Both(streams, open_loop(documents(4.0, 20, 10.0, seed=1)))
    first = both.first()
    stream, document = (
        next(arrival.ask for arrival in first if arrival.ask.request_class == kind)
        for kind in ("stream", "document")
    )
    assert [arrival.ask.request_class for arrival in both.ended(stream.request_id, 3.0)] == ["stream"]
    assert both.ended(document.request_id, 3.0) == []


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="the engine's process is found in /proc")
def test_a_stopped_engine_and_a_pool_too_small_are_named_on_a_real_server() -> None:
    words = ["--only", "stopped engine,pool too small", "--for", "12", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.faults", *words], capture_output=True, text=True, check=False
    )
    said = json.loads(done.stdout.splitlines()[-1])["embedded"]
    assert (said["right"], said["of"], done.returncode) == (2, 2, 0), done.stdout + done.stderr
