"""The JSON of a search carries the figures of the page, in what every program reads."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from headrace.core.grade import Grade
from headrace.report.tuning.as_json import tuning_json
from headrace.report.tuning.figures import compared
from headrace.report.tuning.tuning import Tuning
from tests.report.tuning import examples
from tests.report.tuning.drawn import tunings
from tests.report.tuning.formula import BEST, OUT_OF_MEMORY, START


def read_back(tuning: Tuning) -> dict[str, Any]:
    return json.loads(json.dumps(tuning_json(tuning), allow_nan=False))


@pytest.mark.parametrize("example", examples.EVERY)
def test_each_verdict_has_the_same_keys(example: Callable[[], Tuning]) -> None:
    assert read_back(example()).keys() == read_back(examples.improved()).keys()


@pytest.mark.slow
@given(tunings)
def test_any_outcome_is_json_without_infinities(tuning: Tuning) -> None:
    assert read_back(tuning)["format"] == "headrace.tuning"


def test_the_figures_are_those_of_the_tables() -> None:
    tuning = examples.improved()
    told, sides = read_back(tuning), compared(tuning)
    first = told["compared"]["latencies"][0]
    assert sides.rows[0].before
    assert first["before"]["value"] == sides.rows[0].before.value
    assert (first["class"], first["latency"], first["limit_s"]) == ("short", "P95 TTFT", 0.5)
    assert told["compared"]["after"] == {"runs": [6, 8], "settings": BEST}
    outcome = tuning.runs[2].outcome
    assert isinstance(outcome, Grade)
    assert told["trials"][2]["result"]["ratio"] == outcome.ratio


def test_only_what_is_proven_is_recommended() -> None:
    assert read_back(examples.improved())["recommended"] == BEST
    assert read_back(examples.improved())["recommended_settings"] == {**START, **BEST}
    undecided = read_back(examples.inconclusive())
    assert undecided["recommended"] == {}
    assert undecided["contender"] == BEST
    assert undecided["command"] == examples.SERVER.command


def test_pools_are_told_apart_from_what_is_recommended() -> None:
    told = read_back(examples.carries_more())["pools"]
    assert (told["servers_share"], told["pays_from_servers"]) == (0.81, 6)
    assert told["apart"][0] == {
        "name": "short",
        "overrides": {"max_num_batched_tokens": 512},
        "capacity": 3.1,
        "command": "vllm serve M --max-num-batched-tokens 512",
    }
    assert read_back(examples.improved())["pools"] is None


def test_a_run_whose_record_is_at_hand_says_whether_to_believe_it() -> None:
    trials = read_back(examples.improved())["trials"]
    assert trials[0]["valid"] is True
    assert trials[0]["worst_interval_s"][0] <= trials[0]["worst_interval_s"][1]
    assert trials[1]["valid"] is None


def test_a_run_without_a_result_says_why() -> None:
    assert read_back(examples.crashing())["trials"][2]["result"] == {"failed_because": OUT_OF_MEMORY}


def test_what_failed_beyond_a_percentile_is_null() -> None:
    assert read_back(examples.hopeless_percentile())["compared"]["latencies"][0]["before"]["value"] is None
