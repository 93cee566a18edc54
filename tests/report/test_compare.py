"""Two servers beside each other fit a terminal and a page, whatever they differ by."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace.core.measurement import Measurement
from headrace.report.compare import Comparison, found_of, headline, print_comparison, ratio
from headrace.report.compare_files import comparison_json, write_comparison
from headrace.report.compare_page import compare_page
from tests.measure.samples import failure, measurement, timeline


def slice_of(times: float, classes: tuple[str, ...] = ("short", "long")) -> Measurement:
    return measurement(
        *(
            timeline(0.1 * times * (1 + n / 50), name, gaps_s=(0.01 * times,), due_at=float(n))
            for n in range(12)
            for name in classes
        )
    )


def compared(b: list[float], classes: tuple[str, ...] = ("short", "long")) -> Comparison:
    server = replace(slice_of(1.0, classes), target="http://a")
    return found_of([(server, slice_of(times, classes)) for times in b])


def shown(comparison: Comparison) -> list[str]:
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=80, highlight=False))
    return out.getvalue().splitlines()


@given(
    st.lists(st.floats(1e-5, 1e5), min_size=2, max_size=4),
    st.sampled_from([("x",), ("a class with a name of forty characters", "short")]),
)
def test_no_verdict_is_cut_at_80_columns(b: list[float], classes: tuple[str, ...]) -> None:
    """It said "inconclusi…" where an interval was wide."""
    comparison = compared(b, classes)
    lines = shown(comparison)

    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line and "A B, B A, …" not in line for line in lines)
    verdicts = [line.split()[-1] for line in lines if line.startswith("  ") and "figure" not in line]
    assert verdicts == [each.verdict.value for each in comparison.found]


@pytest.mark.parametrize(
    ("b", "word"),
    [
        ([2.0, 2.01, 2.0], "B IS WORSE"),
        ([0.5, 0.501, 0.5], "B IS BETTER"),
        ([1.0, 1.001, 1.0], "THE SAME"),
        ([2.0, 0.5, 1.0], "INCONCLUSIVE"),
        ([2.0, 2.01], "TOO FEW PAIRS"),
    ],
)
def test_the_headline_is_the_same_for_a_person_a_page_and_a_program(b: list[float], word: str) -> None:
    comparison = compared(b)

    assert headline(comparison)[0] == word
    assert any(line.startswith(f"{word}: ") for line in shown(comparison))
    assert f"<strong>{word}</strong>" in compare_page(comparison)
    assert comparison_json(comparison)["verdict"] == word.lower()


def test_of_two_pairs_it_is_told_how_many_give_an_interval() -> None:
    said = " ".join(shown(compared([2.0, 2.01])))

    assert "2 give ratios, and no interval" in said
    assert "--pairs 3 gives one" in said
    assert comparison_json(compared([2.0, 2.01]))["differences"][0]["between"] is None


def test_a_server_that_answered_nothing_of_a_class_is_worse() -> None:
    a = slice_of(1.0)
    b = measurement(*slice_of(1.0, ("short",)).results, failure(request_class="long"))
    comparison = found_of([(a, b)] * 3)

    assert comparison.is_worse
    assert "Not compared: long, of which B answered none of 1 request in pair 1." in " ".join(
        shown(comparison)
    )
    assert "B answered none" in compare_page(comparison)


def test_invalid_slices_are_named_and_few_lines_of_them_shown() -> None:
    late = measurement(*(replace(timeline(0.1, due_at=float(n)), sent_at=n + 0.09) for n in range(12)))
    comparison = found_of([(late, late)] * 4)

    lines = [line for line in shown(comparison) if line.startswith("INVALID")]
    assert lines[0] == "INVALID: 8 of 8 slices, so the verdict is not to be relied on."
    assert lines[1].startswith("INVALID: pair 1, A: requests left")
    assert len(lines) == 5
    assert "<strong>INVALID; " in compare_page(comparison)
    assert len(comparison_json(comparison)["invalid_because"]) == len(comparison.invalid) >= 8


def test_a_page_stands_alone_with_a_picture_for_each_class_and_a_row_for_each_slice() -> None:
    html = compare_page(compared([1.1, 1.5, 0.9]))

    assert html.count("<svg") == 3 + 3 * 2 + 2  # ratios, pairs by TTFT and ITL, boxes and gaps
    assert "B / A, long" in html
    assert html.count("<tr>") == 1 + 24 + 1 + 6
    for foreign in ("<script", "src=", "@import", 'href="http'):
        assert foreign not in html


@given(st.lists(st.floats(1e-5, 1e5), min_size=2, max_size=3))
def test_any_comparison_has_a_page_a_table_and_an_object(b: list[float]) -> None:
    comparison = compared(b)

    assert "</html>" in compare_page(comparison)
    assert json.loads(json.dumps(comparison_json(comparison)))["pairs"] == len(b)


def test_a_spreadsheet_has_a_row_for_each_figure_with_the_ratio_of_each_pair(tmp_path: Path) -> None:
    comparison = compared([1.1, 1.5, 0.9])
    write_comparison(comparison, tmp_path / "c.csv")

    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["figure"] for row in rows] == [each.figure for each in comparison.found]
    assert float(rows[0]["ratio_pair_2"]) == pytest.approx(1.5)
    assert float(rows[0]["ratio_low"]) < float(rows[0]["ratio"]) < float(rows[0]["ratio_high"])


@given(st.floats(0, 1e12))
def test_a_ratio_takes_six_characters_at_most(times: float) -> None:
    assert len(ratio(times)) <= 6
