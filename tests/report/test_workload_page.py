"""The page of a workload stands alone, and nothing from a file can become part of it but text."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.report.charts import cumulative_chart, stacked_bars
from headrace.workload.own_form import write_workload
from headrace.workload.trace import About, TraceRequest

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    names = ("chat", HOSTILE)
    requests = [TraceRequest(at / 10, 10 + 17 * at, 1 + at % 50, names[at % 2]) for at in range(300)]
    write_workload(folder / "w.jsonl", About(HOSTILE), requests)
    arguments = ["workload", "describe", str(folder / "w.jsonl"), "--html", str(folder / "w.html")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return (folder / "w.html").read_text()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_loads_nothing_and_runs_nothing(html: str) -> None:
    seen = _Tags()
    seen.feed(html)
    assert not {"script", "link", "iframe", "object", "img"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name == "src"]
    assert not re.search(r"@import|url\((?!#)", html)
    assert seen.tags.count("svg") >= 3


def test_what_a_file_says_is_shown_as_text(html: str) -> None:
    assert HOSTILE not in html
    assert "&lt;script&gt;alert" in html


def test_the_page_has_the_figures_of_the_terminal(html: str) -> None:
    for words in ("headrace, 300 requests", "long prompts", "burstiness", "Percentiles interpolate"):
        assert words in html


def test_charts_are_whole_svg_and_have_a_mark_for_each_value() -> None:
    bars = ElementTree.fromstring(stacked_bars("t", ["a", "b", "c"], 1, {"x": [1, 2, 3], "y": [0, 1, 0]}))
    marks = [each for each in bars.iter() if each.get("class", "").startswith("rect")]
    assert len(marks) == 6
    one = cumulative_chart("t", "tokens", {"a": [(1, 1.0)]})
    assert ElementTree.fromstring(one).tag.endswith("svg")


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    write_workload(path, About(), [TraceRequest(0.0, 5, 5)])
    arguments = ["workload", "describe", str(path), "--html", str(tmp_path / "no" / "w.html")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
