"""Calls in the text of an answer: found however it is cut, and nothing else is lost."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.net.tool_calls import CallFinder, CallPart, ListedCalls, MarkedCalls, NamedCall

CALL = '{"name": "f", "arguments": {"a": "}<tool_call>]\\""}}'
TEXTS = st.text("<tol_ca/>{}x \n", max_size=12)
ANSWERS = st.lists(
    TEXTS | st.just(f"<tool_call>{CALL}</tool_call>") | st.just("<tool_call>no call</tool_call>"), max_size=5
).map("".join)


def told(finder: CallFinder, pieces: list[str]) -> tuple[str, list[CallPart]]:
    found = [*map(finder.push, pieces), finder.finish()]
    return "".join(each.content for each in found), [part for each in found for part in each.calls]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


@given(ANSWERS, st.lists(st.integers(0, 500), max_size=6))
def test_what_is_found_does_not_depend_on_where_an_answer_is_cut(text: str, places: list[int]) -> None:
    assert told(MarkedCalls(None), cut(text, places)) == told(MarkedCalls(None), [text])


@given(st.text("<tol_ca/>{}x \n"))
def test_an_answer_without_a_whole_call_is_text_to_the_last_character(text: str) -> None:
    assert told(MarkedCalls(None), list(text)) == (text, [])


def test_calls_are_counted_and_the_line_breaks_between_them_dropped() -> None:
    text = f"a <tool_call>\n{CALL}\n</tool_call>\n\n<tool_call>{CALL}</tool_call>\n b"
    content, calls = told(MarkedCalls(None), [text])
    assert content == "a b"
    assert [(call.index, call.name) for call in calls] == [(0, "f"), (1, "f")]
    assert calls[0].arguments == '{"a":"}<tool_call>]\\""}'
    assert len(told(MarkedCalls(1), [text])[1]) == 1


def test_a_call_without_its_closing_mark_counts_if_it_is_whole() -> None:
    assert told(MarkedCalls(None), [f"<tool_call>{CALL}"])[1][0].name == "f"
    assert told(MarkedCalls(None), [f"<tool_call>{CALL[:-1]}"]) == (f"<tool_call>{CALL[:-1]}", [])


@given(st.lists(st.integers(0, 500), max_size=6))
def test_a_list_of_calls_is_told_call_by_call(places: list[int]) -> None:
    one = '{"name": "f", "parameters": {"a": [{"b": "}]\\\\"}]}}'
    content, calls = told(ListedCalls(), cut(f"[{one}, {one}]", places))
    assert content == ""
    assert calls == [CallPart(place, "f", '{"a":[{"b":"}]\\\\"}]}') for place in (0, 1)]
    assert told(ListedCalls(), [f"[{one}, {one[:-3]}"])[0] == one[:-3], "cut off: shown as text"


def test_the_arguments_of_a_named_function_pass_through() -> None:
    assert told(NamedCall("f"), ['{"a"', "", ": 1}"]) == (
        "",
        [CallPart(0, "f", '{"a"'), CallPart(0, None, ": 1}")],
    )
