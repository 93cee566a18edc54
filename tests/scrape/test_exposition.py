import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.scrape.exposition import MOST_SAMPLES, samples_of

PAGE = """# HELP vllm:num_requests_running Requests in execution.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\" c"} 8.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
other_metric 3
"""


def test_samples_come_with_labels_and_values() -> None:
    page = samples_of(PAGE.splitlines(), ("vllm:",))

    assert [(s.name, s.value) for s in page.samples] == [
        ("vllm:num_requests_running", 8.0),
        ("vllm:kv_cache_usage_perc", 0.5),
    ]
    assert page.samples[0].labels["model_name"] == 'a "b" c'
    assert (page.malformed, page.left_out) == (0, 0)


def test_a_page_cut_off_costs_its_last_line_only() -> None:
    page = samples_of(PAGE[: PAGE.index("0.5") - 1].splitlines(), ("vllm:",))

    assert [s.name for s in page.samples] == ["vllm:num_requests_running"]
    assert page.malformed == 1


@pytest.mark.slow
def test_labels_without_end_are_bounded() -> None:
    lines = (f'vllm:x{{id="{n}"}} 1' for n in range(MOST_SAMPLES + 7))

    page = samples_of(lines, ("vllm:",))

    assert len(page.samples) == MOST_SAMPLES
    assert page.left_out == 7


@given(st.lists(st.text(max_size=60)))
def test_no_line_can_break_it(lines: list[str]) -> None:
    samples_of([*lines, *(f"vllm:{line}" for line in lines)])
