"""What the doctor says of servers under faults made on purpose, as `bench.faults` recorded them.

seen.jsonl is of real runs of the embedded engine and of vLLM 0.32 on one machine (`bench.faults.recorded`);
what must be named stands in `bench.faults.scenarios`. Only the machine's own view is not in it. In
`vllm-token-budget-too-large-in-one-step` the large step was nearly all that was seen, so that half of the
look's few gaps were as long, and nothing was said of it; in `vllm-random-prefixes-and-one-pause` one token
of one stream came 0.75 s late, and streams were said to stand.
"""

import json
from pathlib import Path

import pytest

from bench.faults.judging import judge
from bench.faults.running import Examined
from bench.faults.scenarios import FAULTS, Disturbance
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.evidence import Event, Evidence, Flag, Reading
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.histograms import histogram
from headrace.report.diagnosis import diagnosis_json

SEEN = {
    row["name"]: row
    for row in map(json.loads, Path(__file__).with_name("seen.jsonl").read_text().splitlines())
}
TOLD_BY_THE_MACHINE = (Disturbance.BUSY_NEIGHBOURS, Disturbance.STOPPED_ENGINE)


def evidence(name: str) -> Evidence:
    row = SEEN[name]
    readings = {n: Reading(n, tuple(values), "/metrics") for n, values in row["readings"].items()}
    flags = {n: Flag(value, "/metrics vllm:cache_config_info") for n, value in row["flags"].items()}
    return Evidence(row["engine"], row["version"], flags, readings, sources=("/metrics",))


def fault_of(name: str) -> tuple[str, str]:
    target, _, fault = name.partition("-")
    return target, next(known for known in FAULTS if fault.startswith(known.replace(" ", "-")))


@pytest.mark.parametrize("name", SEEN)
def test_the_fault_is_named_first(name: str) -> None:
    target, fault = fault_of(name)
    said = diagnosis_json(diagnose(evidence(name)))
    if FAULTS[fault].disturbance in TOLD_BY_THE_MACHINE:
        return
    row = judge(target, fault, Examined(said, 0, "", 20.0, 0.0))
    assert row.right, f"{row.why}: {row.first}"


@pytest.mark.parametrize("name", [name for name in SEEN if name.endswith("stopped-engine")])
def test_an_engine_that_is_stopped_stands_still_even_where_the_machine_is_not_to_be_seen(name: str) -> None:
    found = diagnose(evidence(name)).findings
    assert (found[0].label, found[0].severity) == (Label.STALL, Severity.CRITICAL)


def start(silent_s: float, answers: float, *kinds: str) -> Evidence:
    readings = {
        name: Reading(name, (value,), "url")
        for name, value in (("server:silent_s", silent_s), ("server:answers", answers))
    }
    events = tuple(Event(kind, {}, f"log:{n}", kind, n) for n, kind in enumerate(kinds))
    return Evidence(readings=readings, events=events, counts=dict.fromkeys(kinds, 1))


def test_a_server_that_is_still_loading_is_a_cold_start() -> None:
    found = diagnose(start(12.0, 0.0, "load_began")).findings[0]
    assert (found.label, "still starting" in found.claim) == (Label.COLD_START, True)


def test_one_that_opened_while_it_was_looked_at_is_told_with_the_time_that_it_took() -> None:
    found = diagnose(start(12.0, 1.0, "load_began", "ready")).findings[0]
    assert (found.label, "12 s" in found.claim) == (Label.COLD_START, True)


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        (0.0, ("load_began", "ready")),  # it was up, and is gone
        (0.0, ("load_began", "stopping")),  # it was told to stop
        (0.0, ()),  # nothing says that anything starts there
    ],
)
def test_silence_alone_is_no_cold_start(answers: float, kinds: tuple[str, ...]) -> None:
    labels = {finding.label for finding in diagnose(start(12.0, answers, *kinds)).findings}
    assert Label.COLD_START not in labels


def test_a_histogram_counts_what_came_between_the_first_page_and_the_last() -> None:
    values = {"1.0": (5.0, 5.0, 6.0), "2.0": (5.0, 7.0, 9.0), "+Inf": (5.0, 7.0, 10.0)}
    readings = {
        name: Reading(name, series, "m")
        for name, series in ((f"h_bucket{{le={edge}}}", series) for edge, series in values.items())
    }
    found = histogram(Evidence(readings=readings), "h")
    assert [(b.low, b.high, b.count) for b in found.buckets] == [(0, 1, 1), (1, 2, 3), (2, float("inf"), 1)]
    assert (found.at(0.5).high, found.above(2.0), found.count) == (2.0, 1.0, 5.0)
    assert histogram(Evidence(), "h").at(0.5).count == 0
