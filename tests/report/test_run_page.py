"""A page stands alone, whatever was measured, and shows what the terminal shows."""

from pathlib import Path

import pytest
from hypothesis import given

from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.objective import parse_objectives
from headrace.measure.capacity import Capacity, Found, Probe
from headrace.measure.goodput import Verdict
from headrace.report.capacity_page import capacity_page
from headrace.report.run_page import run_page, write_page
from tests.measure.samples import failure, measurement, measurements, timeline

SLO = parse_objectives("p95 ttft < 500ms")


def test_a_page_has_the_figures_and_the_promises_and_nothing_from_elsewhere() -> None:
    run = measurement(
        *(timeline(0.1 + 0.01 * n, gaps_s=(0.02,), due_at=float(n)) for n in range(30)), failure()
    )
    html = run_page(run, SLO)

    assert "p95 ttft &lt; 500ms" in html
    assert "TTFT by when a request was due" in html
    assert html.count("<svg") == 5
    for foreign in ("<script", "src=", "@import", 'href="http'):
        assert foreign not in html


def test_a_run_that_is_not_to_be_believed_says_so_at_the_top() -> None:
    late = measurement(timeline(0.1))
    assert "believed</dt><dd>yes" in run_page(late)


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

    assert "CAPACITY: 1 requests a second" in html
    assert "against requests a second" in html


def test_a_page_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write_page(tmp_path / "none" / "page.html", "")
