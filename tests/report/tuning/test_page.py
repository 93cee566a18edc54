"""The page of a search stands alone, says what the terminal says, and has every run on it."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from headrace.core.grade import Grade
from headrace.report.tuning.charts import Dot, Marks, bill_bars, factor_lines, ratio_dots
from headrace.report.tuning.figures import compared
from headrace.report.tuning.headline import headline
from headrace.report.tuning.page import tuning_page
from headrace.report.tuning.tuning import Tuning
from headrace.report.tuning.words import sentence
from tests.report.tuning import examples
from tests.report.tuning.drawn import tunings
from tests.report.tuning.examples import TRAFFIC
from tests.report.tuning.formula import OUT_OF_MEMORY

EVERY = pytest.mark.parametrize("example", examples.EVERY)
Example = Callable[[], Tuning]


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


@cache
def improved_page() -> Page:
    return Page(tuning_page(examples.improved()))


@pytest.mark.slow
@EVERY
def test_a_page_loads_nothing_runs_nothing_and_says_the_verdict(example: Example) -> None:
    tuning = example()
    html = tuning_page(tuning)
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert not re.search(r"@import|url\((?!#)", html)
    said = headline(tuning, compared(tuning))
    assert said.word in page.text
    assert sentence(said.sentence) in page.text


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(tunings)
def test_any_outcome_has_a_page_with_its_texts_as_texts(tuning: Tuning) -> None:
    html = tuning_page(tuning)
    assert "</html>" in html
    assert "<b>x</b>" not in html


def test_every_run_is_there_with_its_load_its_figure_and_whether_to_believe_it() -> None:
    tuning = examples.improved()
    page = improved_page()
    rows = page.text.partition("Every run on the server")[2].partition("The traffic")[0]
    assert "1 baseline the start 1 yes P95 TTFT, short 1.90 s" in rows
    assert rows.count("proof max_num_batched_tokens 512, long_prefill_token_threshold 256") == 2
    for run in tuning.runs:
        assert isinstance(run.outcome, Grade)
        assert f"{run.outcome.ratio:.2f}" in rows


def test_a_run_without_a_result_says_why() -> None:
    assert f"Run 3: {OUT_OF_MEMORY}." in Page(tuning_page(examples.crashing())).text


def test_levers_have_their_knee_and_what_each_step_costs() -> None:
    text = improved_page().text
    assert "512 is best, the knee: beyond it the worst latency grows up to" in text
    assert "beside the line above" in text
    assert "4096 94.4 10.9 s 675 ms 4.40 +1 % throughput, P95 TTFT x 1.2" in text
    assert "Nothing here depends on max_num_seqs." in text


def test_prediction_and_measurement_stand_side_by_side() -> None:
    text = improved_page().text
    assert "steps with prompts take 1.13 times, steps that only decode 0.96 times" in text
    assert "3 max_num_batched_tokens 256 1 P95 TTFT, short 2.00 s 2.11 s +5% yes" in text


def test_the_obvious_move_is_answered() -> None:
    text = improved_page().text
    assert "four times the tokens a step: max_num_batched_tokens 8192 8.49 x 2.30 P95 ITL of short" in text
    assert "more on 'others' part of its steps'" in text
    assert "Unsafe: 3 GiB are to spare." in text


def test_pools_are_told_with_what_each_gets_and_carries() -> None:
    text = Page(tuning_page(examples.carries_more())).text
    assert "take 0.81 of the servers for the same load, a whole one less from a fleet of 6 on" in text
    assert "short, up to 90 tokens 88% max_num_batched_tokens 512 6.82 requests/s 0.31" in text
    assert "# long, not proven vllm serve M" in text


def test_commands_versions_and_seeds_are_there_to_repeat_it() -> None:
    text = improved_page().text
    for said in (examples.SERVER.recommended, "vllm 0.32.0", "seed 3", "# runs 1, 3, 5, 7, the last of them"):
        assert said in text


def test_what_others_wrote_is_text() -> None:
    hostile = "<script>alert(1)</script>"
    tuning = replace(examples.improved(), traffic=replace(TRAFFIC, said=hostile), twin=hostile)
    assert hostile not in tuning_page(tuning)


@pytest.mark.slow
def test_the_same_outcome_is_the_same_page_to_the_byte() -> None:
    assert tuning_page(examples.improved()) == tuning_page(examples.improved())


def test_charts_are_whole_pictures_with_plain_numbers_on_logarithmic_axes() -> None:
    for svg, mark in (
        (bill_bars("t", {"start": compared(examples.improved()).bills[0].before}), "1.13 s"),
        (factor_lines("t", "x", ["a", "b"], {"x": [1.0, 3.0], "y": [None, 2.0]}), "x 3"),
        (ratio_dots("t", "x", [Marks("m", 1, (Dot(1.0, 50.0, "run 1: 50"),))]), "run 1: 50"),
    ):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert mark in svg
