"""What is made of a server that was calibrated from outside, and what a person is told of it."""

from dataclasses import replace

import pytest

from headrace.cli.calibrate_url import CalibratedUrl, in_words, machine_of
from headrace.core.cost import FrontEnd, Residual
from headrace.executor.cost import FittedCost
from headrace.measure.black_box import BlackBox
from headrace.net.server_facts import ServerFacts

COST = FittedCost(
    {"step": 50e6},
    Residual(64, 0.034, 0.134),
    {"by": "a test"},
    None,
    FrontEnd(5_000_000, 1_500.0, 2_000_000),
)
SEEN = BlackBox(COST, 2048, 2048, ())
FACTS = ServerFacts(8192, 182, 128, 1 << 30, 2048, 128, 0, True, False)


def calibrated(facts: ServerFacts, seen: BlackBox = SEEN) -> CalibratedUrl:
    machine = machine_of(facts, seen, "http://there:8000", "smollm2")
    return CalibratedUrl(replace(seen.cost, machine=machine), seen, facts)


@pytest.mark.parametrize("blocks", [2, 13, 182, 27_000])
def test_a_simulation_gets_just_the_blocks_that_the_server_has(blocks: int) -> None:
    machine = machine_of(replace(FACTS, num_gpu_blocks=blocks), SEEN, "u", "m")
    assert machine is not None
    assert machine.num_gpu_blocks(128) == blocks
    assert (machine.max_num_batched_tokens, machine.max_num_seqs) == (2048, 128)


def test_what_the_server_says_wins_over_what_was_seen_and_that_over_vllms_defaults() -> None:
    silent = replace(FACTS, max_num_batched_tokens=None, max_num_seqs=None)
    cut, uncut = replace(SEEN, chunk_tokens=512), BlackBox(COST, None, 3000, ())
    for facts, seen, expected in ((FACTS, cut, 2048), (silent, cut, 512), (silent, uncut, 3000)):
        machine = machine_of(facts, seen, "u", "m")
        assert machine is not None
        assert machine.max_num_batched_tokens == expected


def test_it_says_what_it_found_and_how_sure_it_is() -> None:
    words = in_words(calibrated(FACTS))
    assert "Half of them are told within 3.4%, 19 of 20 within 13.4%." in words
    assert "Outside steps a lone request takes 7.0 ms," in words
    assert "Tokens of a step: prompts were cut as by 2,048; the server says 2,048." in words
    assert "Its KV cache: 182 blocks of 128 tokens, as it says itself." in words
    assert max(map(len, words)) <= 80


def test_what_must_be_given_by_hand_is_named_as_flags() -> None:
    words = in_words(calibrated(ServerFacts(max_model_len=4096)))
    assert "  --num-gpu-blocks-override N" in words
    assert "  --max-model-len 4096" in words
    assert "  --max-num-batched-tokens 2048" in words
    quiet = in_words(calibrated(replace(FACTS, max_num_seqs=None, async_scheduling=None)))
    assert any("--max-num-seqs, 256 taken" in line for line in quiet)
    assert any("--async-scheduling, taken as off" in line for line in quiet)


def test_a_poor_fit_and_what_was_not_seen_are_told() -> None:
    poor = BlackBox(replace(COST, residual=Residual(64, 0.2, 0.9)), None, 900, ("32 requests never met",))
    words = in_words(calibrated(FACTS, poor))
    assert "Not seen: 32 requests never met." in words
    assert "Tokens of a step: one of 900 was not cut; the server says 2,048." in words
    assert words[-1].startswith("A poor fit")
