"""Each public form gives the requests that its files describe, and refuses what is none."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.core.errors import BadInput
from headrace.workload.forms import TraceFormat
from headrace.workload.own_form import write_workload
from headrace.workload.readers import open_trace, read_trace
from headrace.workload.slices import Slice
from headrace.workload.trace import About, TraceRequest

HERE = Path(__file__).parent

BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
46,GPT-4,12,0,12,API log
"""

BENCH = {
    "date": "20261129-180107",
    "backend": "openai",
    "num_prompts": 3,
    "input_lens": [128, 64, 32],
    "output_lens": [32, 16, 8],
    "start_times": [103.0, 101.5, 104.0],
    "queue_times": [1.0, 0.5, 0.0],
    "errors": ["", "", "cut off"],
    "itls": [[0.1], [0.1], []],
}

REQUESTS = (
    TraceRequest(0.25, 100, 7, "chat", 1, (3, 4), 64, "t1", "s1"),
    TraceRequest(1.5, 180, 9, "chat", 1, (3, 4, 5), 64, "t1", "s1", 1.25),
    TraceRequest(1.5, 20, 1, "docs"),
)


def file_of(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_burstgpt_is_told_by_its_columns_and_an_answer_of_no_tokens_has_failed(tmp_path: Path) -> None:
    trace = read_trace(file_of(tmp_path, BURSTGPT))
    assert trace.trace_format is TraceFormat.BURSTGPT
    assert trace.left_out == 1
    assert [(r.due_at, r.prompt_tokens, r.output_tokens, r.request_class) for r in trace.requests] == [
        (0.0, 472, 18, "conversation"),
        (40.5, 1087, 230, "api"),
    ]


def test_burstgpts_columns_may_come_in_any_order_and_with_more_of_them(tmp_path: Path) -> None:
    text = "Session ID,Response tokens,Request tokens,Timestamp\nab,3,2,1\n"
    (request,) = read_trace(file_of(tmp_path, text)).requests
    assert (request.prompt_tokens, request.output_tokens, request.session) == (2, 3, "ab")


def test_vllm_bench_is_replayed_from_when_requests_were_due_without_what_failed(tmp_path: Path) -> None:
    trace = read_trace(file_of(tmp_path, json.dumps(BENCH)))
    assert trace.trace_format is TraceFormat.VLLM_BENCH
    assert trace.left_out == 1
    assert [(r.due_at, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 64, 16),
        (1.0, 128, 32),
    ]


def test_vllm_bench_without_details_is_refused_with_what_to_do(tmp_path: Path) -> None:
    brief = {name: value for name, value in BENCH.items() if name != "start_times"}
    with pytest.raises(BadInput, match="3 input_lens, 3 output_lens and 0 start_times") as refused:
        read_trace(file_of(tmp_path, json.dumps(brief)))
    assert "--save-detailed" in refused.value.hint
    with pytest.raises(BadInput, match="is no result of `vllm bench serve`"):
        read_trace(file_of(tmp_path, json.dumps(BENCH)[:-30]))


def test_our_own_form_keeps_everything_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    about = About("by hand", 7, "chat: ttft 500ms", 64)
    write_workload(path, about, REQUESTS)
    trace = read_trace(path)
    assert (trace.requests, trace.about, trace.trace_format) == (REQUESTS, about, TraceFormat.HEADRACE)
    again = tmp_path / "again.jsonl"
    write_workload(again, trace.about, trace.requests)
    assert again.read_bytes() == path.read_bytes()


def test_a_part_can_be_cut_out_by_time_class_and_number(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_workload(path, About(), REQUESTS)
    late = read_trace(path, part=Slice(from_s=1.0)).requests
    assert [r.due_at for r in late] == [0.5, 0.5]
    assert read_trace(path, part=Slice(classes=frozenset({"docs"}))).requests[0].prompt_tokens == 20
    with pytest.raises(BadInput, match="no request in the part that is asked for"):
        read_trace(path, part=Slice(classes=frozenset({"nobody"})))


CHANGES: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (
        lambda lines: lines[:-1],
        "line 4: the last line, which says how many requests there are, is missing",
    ),
    (lambda lines: [*lines[:2], lines[-1]], "line 3: its end says 3 requests, 1 are there"),
    (lambda lines: [*lines, lines[1]], "line 6: after the end, which line 5 marks"),
    (lambda lines: [lines[0], lines[1][:20]], "line 2: .*truncated"),
    (lambda lines: [lines[0].replace(":1,", ":2,"), *lines[1:]], "version 2 of the format"),
    (lambda lines: [lines[0].replace("headrace.w", "w"), *lines[1:]], "the format is 'workload'"),
    (lambda lines: [*lines[:2], lines[2].replace("1250000000", "-5000000000"), *lines[3:]], "comes 5 s"),
]


@pytest.mark.parametrize(("change", "complaint"), CHANGES)
def test_what_our_own_form_promises_is_checked(
    tmp_path: Path, change: Callable[[list[str]], list[str]], complaint: str
) -> None:
    path = tmp_path / "own.jsonl"
    write_workload(path, About(), REQUESTS)
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(BadInput, match=complaint):
        read_trace(path)


def test_a_workload_that_could_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_workload(path, About("old"), REQUESTS)
    before = path.read_bytes()

    def broken() -> Iterator[TraceRequest]:
        yield REQUESTS[0]
        raise BadInput("the source broke")

    with pytest.raises(BadInput, match="the source broke"):
        write_workload(path, About("new"), broken())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["own.jsonl"]


def test_vllms_log_gives_arrivals_lengths_and_who_shares_a_beginning() -> None:
    """The lines are those of vLLM 0.32; the second answer was streamed. One user's words imitate the log."""
    trace = read_trace(HERE / "vllm_requests.log")
    assert trace.trace_format is TraceFormat.VLLM_LOG
    first, second, third = trace.requests
    assert [r.due_at for r in trace.requests] == [0.0, 3.0, 12.0]
    assert [r.output_tokens for r in trace.requests] == [7, 8, 4]
    assert third.prompt_tokens == 3
    assert first.prompt_tokens == second.prompt_tokens > 64
    assert first.prefix_ids[0] == second.prefix_ids[0]


def test_vllms_log_may_begin_with_what_libraries_print(tmp_path: Path) -> None:
    path = file_of(tmp_path, "Triton is installed\n\n" + (HERE / "vllm_requests.log").read_text())
    assert len(read_trace(path).requests) == 3


def test_vllms_log_without_token_ids_is_refused_with_what_to_do(tmp_path: Path) -> None:
    lines = (HERE / "vllm_requests.log").read_text().splitlines()
    brief = [line for line in lines if " DEBUG " not in line]
    with pytest.raises(BadInput, match="3 requests, and of none the prompt's length") as refused:
        read_trace(file_of(tmp_path, "\n".join(brief)))
    assert "--enable-log-requests" in refused.value.hint


def test_a_stream_reads_no_further_than_it_is_asked(tmp_path: Path) -> None:
    rows = "".join(f'{{"timestamp":{at},"input_length":5,"output_length":5}}\n' for at in range(200_000))
    with open_trace(file_of(tmp_path, rows)) as stream:
        next(stream.requests())
        assert stream.bytes_read < stream.total_bytes / 10
