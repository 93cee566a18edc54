"""Calls in the text of an answer: found however it is cut, and nothing else is lost."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.net.tool_calls import CallFinder, CallPart, ListedCalls, MarkedCalls, NamedCall

CALL = '{"name": "f", "arguments": {"a": "}<tool_call>]\\""}}'
TEXTS = st.text("<tol_ca/>{}x \n", max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | st.text('a"\\{}[]</tol_ca>東\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)


def written(value: dict[str, object], indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


ARGUMENTS = st.builds(
    written, st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=3), st.sampled_from((None, 1))
)
ANSWERS = st.lists(
    TEXTS | st.just(f"<tool_call>{CALL}</tool_call>") | st.just("<tool_call>no call</tool_call>"), max_size=5
).map("".join)


def told(finder: CallFinder, pieces: list[str]) -> tuple[str, list[CallPart]]:
    found = [*map(finder.push, pieces), finder.finish()]
    return "".join(each.content for each in found), [part for each in found for part in each.calls]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def assembled(finder: CallFinder, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """What a client makes of a stream: the first part of a call names it, the others add to it."""
    content, parts = told(finder, pieces)
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.name is not None:
            assert part.index == len(calls)
            calls.append((part.name, part.arguments))
        else:
            assert part.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return content, calls


@given(ANSWERS, st.lists(st.integers(0, 500), max_size=6))
def test_what_is_found_does_not_depend_on_where_an_answer_is_cut(text: str, places: list[int]) -> None:
    assert told(MarkedCalls(None), cut(text, places)) == told(MarkedCalls(None), [text])
    early = assembled(MarkedCalls(None, early=True), cut(text, places))
    assert early == assembled(MarkedCalls(None, early=True), [text])


@given(st.lists(ARGUMENTS.filter(lambda text: "</tool_call>" not in text), min_size=1, max_size=3), st.data())
def test_calls_told_early_add_up_to_those_of_the_whole_answer(
    arguments: list[str], data: st.DataObject
) -> None:
    calls = [f'{{"name": "f{place}", "arguments": {text}}}' for place, text in enumerate(arguments)]
    wanted = ("", [(f"f{place}", text) for place, text in enumerate(arguments)])
    places = st.lists(st.integers(0, 2000), max_size=12)

    marked = "\n".join(f"<tool_call>{call}</tool_call>" for call in calls)
    assert assembled(MarkedCalls(None), [marked]) == wanted
    assert assembled(MarkedCalls(None, early=True), cut(marked, data.draw(places))) == wanted

    listed = f"[{', '.join(calls)}]"
    assert assembled(ListedCalls(), [listed]) == wanted
    assert assembled(ListedCalls(early=True), cut(listed, data.draw(places))) == wanted


def test_a_call_is_told_early_as_soon_as_its_arguments_begin() -> None:
    finder = MarkedCalls(None, early=True)
    assert finder.push('ok <tool_call>{"name": "f", "arguments": ').calls == []
    assert finder.push("{").calls == [CallPart(0, "f", "{")]
    assert finder.push('"a": "}').calls == [CallPart(0, None, '"a": "}')]
    assert finder.push('"}').calls == [CallPart(0, None, '"}')]
    assert finder.push("}</tool").calls == []
    assert finder.push('_call><tool_call>{"arguments": {}, ').calls == []
    assert finder.push('"name": "g"}</tool_call>').calls == [CallPart(1, "g", "{}")], (
        "whole: not in that order"
    )


@pytest.mark.parametrize("finder", [MarkedCalls(1, early=True), MarkedCalls(1)])
def test_no_more_calls_are_told_than_may_be(finder: CallFinder) -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    assert [name for name, _ in assembled(finder, list(text * 3))[1]] == ["f"]


def test_a_call_that_is_cut_off_is_what_was_told_of_it() -> None:
    """As in vLLM; in a whole answer it is text."""
    cut_off = '<tool_call>{"name": "f", "arguments": {"a": "b'
    assert assembled(MarkedCalls(None, early=True), list(cut_off)) == ("", [("f", '{"a": "b')])
    assert assembled(MarkedCalls(None), list(cut_off)) == (cut_off, [])
    assert assembled(ListedCalls(early=True), list("[" + cut_off[11:])) == ("", [("f", '{"a": "b')])
    assert assembled(MarkedCalls(None, early=True), list(cut_off[:30])) == (cut_off[:30], []), (
        "no argument yet"
    )


@given(st.text("<tol_ca/>{}x \n"))
def test_an_answer_without_a_whole_call_is_text_to_the_last_character(text: str) -> None:
    assert told(MarkedCalls(None), list(text)) == (text, [])


def test_calls_are_counted_and_the_line_breaks_between_them_dropped() -> None:
    text = f"a <tool_call>\n{CALL}\n</tool_call>\n\n<tool_call>{CALL}</tool_call>\n b"
    content, calls = told(MarkedCalls(None), [text])
    assert content == "a b"
    assert [(call.index, call.name) for call in calls] == [(0, "f"), (1, "f")]
    assert calls[0].arguments == '{"a": "}<tool_call>]\\""}'
    assert len(told(MarkedCalls(1), [text])[1]) == 1


def test_a_call_without_its_closing_mark_counts_if_it_is_whole() -> None:
    assert told(MarkedCalls(None), [f"<tool_call>{CALL}"])[1][0].name == "f"
    assert told(MarkedCalls(None), [f"<tool_call>{CALL[:-1]}"]) == (f"<tool_call>{CALL[:-1]}", [])


@given(st.lists(st.integers(0, 500), max_size=6))
def test_a_list_of_calls_is_told_call_by_call(places: list[int]) -> None:
    one = '{"name": "f", "parameters": {"a": [{"b": "}]\\\\"}]}}'
    content, calls = told(ListedCalls(), cut(f"[{one}, {one}]", places))
    assert content == ""
    assert calls == [CallPart(place, "f", '{"a": [{"b": "}]\\\\"}]}') for place in (0, 1)]
    assert told(ListedCalls(), [f"[{one}, {one[:-3]}"])[0] == one[:-3], "cut off: shown as text"


def test_the_arguments_of_a_named_function_pass_through() -> None:
    assert told(NamedCall("f"), ['{"a"', "", ": 1}"]) == (
        "",
        [CallPart(0, "f", '{"a"'), CallPart(0, None, ": 1}")],
    )
