"""Turns that wait for the answer before them, in virtual time."""

import random
from dataclasses import replace

import pytest

from headrace.core.cost import FrontEnd
from headrace.gateway.router import RoundRobin
from headrace.sim import replica as replica_module
from headrace.sim.run import Fleet, simulate
from headrace.workload.trace import TraceRequest
from tests.sim.test_run import MS, SETTINGS, ContextCost, TokensCost, at, token_ms, told


def turn(due_ms: float, prompt: int, output: int, session: str, think_ms: float | None) -> TraceRequest:
    return replace(
        at(due_ms, prompt, output), session=session, think_s=None if think_ms is None else think_ms / 1e3
    )


def test_a_turn_comes_when_its_answer_has_and_was_thought_about() -> None:
    trace = [turn(0, 10, 2, "a", None), turn(1, 20, 1, "a", 7), turn(2, 5, 1, "b", None)]
    simulated = simulate(trace, SETTINGS, TokensCost())

    first, second, other = simulated.lives
    # The first step ends at 11 ms; the other one joins the second, of one token and five.
    assert token_ms(simulated, first) == [11, 18]
    assert second.request.arrived_ns == (18 + 7) * MS
    assert token_ms(simulated, second) == [25 + 21]
    assert other.request.arrived_ns == 2 * MS


def test_without_a_time_to_think_a_turn_comes_when_the_trace_has_it() -> None:
    trace = [turn(0, 10, 100, "a", None), turn(1, 20, 1, "a", None)]
    assert simulate(trace, SETTINGS, TokensCost()).lives[1].request.arrived_ns == MS


def test_the_way_back_to_the_client_is_before_its_thinking() -> None:
    trace = [turn(0, 10, 1, "a", None), turn(1, 20, 1, "a", 5)]
    fleet = Fleet(front_end=FrontEnd(0, 0.0, 3 * MS))
    simulated = simulate(trace, SETTINGS, TokensCost(), fleet=fleet)
    ended_ns = simulated.step_ends_ns[0][0]
    assert simulated.lives[1].request.arrived_ns == ended_ns + (3 + 5) * MS


def test_a_turn_after_one_that_was_refused_comes_all_the_same() -> None:
    trace = [turn(4, 600, 1, "a", None), turn(5, 5, 1, "a", 10)]
    simulated = simulate(trace, SETTINGS, TokensCost())
    assert simulated.lives[0].refused
    assert simulated.lives[1].request.arrived_ns == 14 * MS
    assert simulated.lives[1].finished


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_every_turn_is_sent_once_and_skipping_quiet_steps_changes_nothing(seed: int, replicas: int) -> None:
    """A turn may come at one replica while another has long answers ahead of it to skip."""
    chance = random.Random(seed)
    trace = [
        turn(
            chance.uniform(0, 0.1),
            chance.randrange(1, 100),
            chance.randrange(1, 150),
            f"s{chance.randrange(6)}",
            chance.choice([None, 0.0, 0.01, chance.uniform(0, 0.2)]),
        )
        for _ in range(40)
    ]
    trace.sort(key=lambda traced: traced.due_at)
    fleet = Fleet(replicas, RoundRobin, FrontEnd(20_000, 300.0, 10_000) if seed % 2 else None)
    skipping = simulate(trace, SETTINGS, ContextCost(), fleet=fleet)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "WORTH_SKIPPING", 10**9)
        stepping = simulate(trace, SETTINGS, ContextCost(), fleet=fleet)

    assert told(skipping) == told(stepping)
    assert [life.traced for life in skipping.lives] == trace
    before: dict[str, int] = {}
    for place, (traced, life) in enumerate(zip(trace, skipping.lives, strict=True)):
        waits_for = before.get(traced.session)
        if traced.think_s is not None and waits_for is not None:
            step = sum(skipping.lives[waits_for].token_steps[-1]) - 1
            ended_ns = skipping.step_ends_ns[skipping.replica_of[waits_for]][step] + skipping.answer_ns
            assert life.request.arrived_ns == ended_ns + round(traced.think_s * 1e9)
        else:
            assert life.request.arrived_ns == round(traced.due_at * 1e9)
        before[traced.session] = place
