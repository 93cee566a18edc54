"""A page stands alone, whatever was measured, and shows what the terminal shows."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.measure.capacity import Capacity, Found, Probe
from headrace.measure.goodput import Verdict
from headrace.report.capacity import headline
from headrace.report.capacity_page import capacity_page
from headrace.report.charts import MOST_TICKS, cumulative_chart, from_nothing
from headrace.report.run_page import run_page, write_page
from tests.measure.samples import failure, measurement, measurements, timeline

SLO = parse_objectives("p95 ttft < 500ms")


def test_a_page_has_the_figures_and_the_promises_and_nothing_from_elsewhere() -> None:
    run = measurement(
        *(timeline(0.1 + 0.01 * n, gaps_s=(0.02,), due_at=float(n)) for n in range(90)), failure()
    )
    html = run_page(run, SLO)

    assert "p95 ttft &lt; 500ms" in html
    assert "TTFT by when a request was due" in html
    assert html.count("<svg") == 5
    assert html.count("a workload") == 1
    assert " to 990 ms</td>" in html  # the interval of a promise
    assert ">ms<" in html
    assert "microseconds" not in html
    for foreign in ("<script", "src=", "@import", 'href="http'):
        assert foreign not in html


def test_a_run_that_is_not_to_be_believed_says_so_at_the_top() -> None:
    late = replace(timeline(0.1), sent_at=0.09)
    assert "<strong>INVALID</strong>" in run_page(measurement(late), SLO)
    assert "<strong>PROMISES UNDECIDED</strong>" in run_page(measurement(timeline(0.1)), SLO)
    assert "<strong>MEASURED</strong>" in run_page(measurement(timeline(0.1)))
    assert "<strong>NO ANSWER</strong>" in run_page(measurement(failure()))


@given(measurements)
def test_any_measurement_has_a_page(run: Measurement) -> None:
    assert "</html>" in run_page(run)


def test_text_of_a_server_is_text_in_a_page() -> None:
    assert "<b>boo" not in run_page(measurement(timeline(0.1), failure(reason="<b>boo")))


def test_the_knee_is_drawn_of_what_met_and_what_missed() -> None:
    probes = (
        Probe(1.0, Verdict.MET, True, "fast", 0.1),
        Probe(2.0, Verdict.MISSED, False, "no steady state", 3.0),
        Probe(4.0, Verdict.MISSED, False, "nothing answered", None),
    )
    html = capacity_page("http://h:1", Capacity(Found.FOUND, 1.0, 2.0, probes), SLO)

    assert "<strong>CAPACITY</strong><p>Between 1 and 2 requests a second." in html
    assert "met at 1 /s in one run alone" in html
    assert "against requests a second" in html


def test_a_search_that_could_not_tell_says_which_duration_would_do() -> None:
    short = (
        Probe(1.0, Verdict.UNDECIDED, None, "of 11 requests", would_do_s=490.0),
        Probe(2.0, Verdict.UNDECIDED, None, "of 22 requests", would_do_s=250.0),
        Probe(4.0, Verdict.MISSED, None, "slow"),
    )
    near = (Probe(1.0, Verdict.MET, True, ""), Probe(2.0, Verdict.UNDECIDED, True, ""), short[2])

    assert headline(Capacity(Found.UNDECIDED, None, 4.0, short)) == (
        "UNDECIDED below 4 requests a second: runs had too few requests. About --duration 250s would do "
        "at the highest of these rates, 500s at the lowest."
    )
    assert headline(Capacity(Found.UNDECIDED, 1.0, 4.0, near)).endswith("can tell more. Raise --duration.")


def test_a_page_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write_page(tmp_path / "none" / "page.html", "")


@given(st.floats(1e-3, 1e7), st.floats(1e-3, 1e7))
def test_labels_of_an_axis_are_few_and_hold_all_values(one: float, other: float) -> None:
    labels = [float(label["value"]) for label in from_nothing([one, other])]

    assert labels[0] == 0
    assert labels[-1] >= max(one, other) > labels[-2]
    assert 3 <= len(labels) <= MOST_TICKS + 1


def test_axes_of_lengths_below_one_have_labels_as_well() -> None:
    chart = cumulative_chart("gaps", "ms", {"a": [(0.02, 0.1), (0.9, 1.0)]})

    assert all(f">{label}<" in chart for label in ("0.02", "0.1", "0.5", "1"))
