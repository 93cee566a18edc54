"""Traces from files: what each form gives, and that every complaint names its line."""

from pathlib import Path

import pytest

from headrace.core.errors import BadInput
from headrace.workload.forms import TraceFormat
from headrace.workload.readers import MOST_LINE_BYTES, read_trace
from headrace.workload.reshape import scaled, spread
from headrace.workload.slices import Slice
from headrace.workload.trace import TraceRequest

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55"""

MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 1025, "output_length": 6, "hash_ids": [0, 1, 2]}
{"timestamp": 6000, "input_length": 10, "output_length": 7, "hash_ids": [9]}
"""


def file_of(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_azure_csv_is_told_by_its_header_and_counts_from_the_first_row(tmp_path: Path) -> None:
    trace = read_trace(file_of(tmp_path, AZURE))
    assert trace.trace_format is TraceFormat.AZURE
    assert [(r.due_at, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 374, 44),
        (4.314579, 396, 109),
        (4.541877, 879, 55),
    ]
    assert trace.requests[0].prefix_ids == ()


def test_times_do_not_jump_where_clocks_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    rows = "2023-10-29 01:59:59,5,5\n2023-10-29 03:00:00,5,5\n"
    trace = read_trace(file_of(tmp_path, AZURE.splitlines()[0] + "\n" + rows))
    assert trace.requests[1].due_at == 3601.0


def test_mooncake_ids_stand_for_as_many_tokens_as_fit_every_row(tmp_path: Path) -> None:
    trace = read_trace(file_of(tmp_path, MOONCAKE))
    assert trace.trace_format is TraceFormat.MOONCAKE
    assert [r.due_at for r in trace.requests] == [0.0, 0.0, 3.0]
    assert {r.prefix_block_tokens for r in trace.requests} == {512}
    assert trace.requests[1].prefix_ids == (0, 1, 2)


def test_ids_of_64_tokens_are_told_from_those_of_512(tmp_path: Path) -> None:
    rows = (
        '{"timestamp": 0, "input_length": 9, "output_length": 2, "session_id": 0, "hash_ids": [0]}\n'
        '{"timestamp": 1.5, "input_length": 126, "output_length": 2, "session_id": 0, "hash_ids": [3, 4]}\n'
    )
    assert read_trace(file_of(tmp_path, rows)).requests[0].prefix_block_tokens == 64


def test_llmservingsim_names_whole_blocks_only(tmp_path: Path) -> None:
    row = '{"arrival_time_ns":46926808,"input_toks":40,"output_toks":5,"hash_ids":[0,1]}\n'
    trace = read_trace(file_of(tmp_path, row + row.replace("46926808", "47926808")))
    assert trace.trace_format is TraceFormat.LLMSERVINGSIM
    assert [(r.due_at, r.prefix_block_tokens) for r in trace.requests] == [(0.0, 16), (0.001, 16)]


def test_a_record_of_bench_is_replayed_in_order_of_due_times_without_what_failed(tmp_path: Path) -> None:
    lines = (
        '{"format":"headrace.measurement","version":1,"requests":3,"target":"x"}',
        '{"timeline":{"due_at":2.0,"prompt_tokens":7,"request_class":"long","token_at":[3.0,4.0],"more":1}}',
        '{"timeline":{"due_at":1.0,"prompt_tokens":5,"request_class":"short","token_at":[3.0]}}',
        '{"failure":{"due_at":1.5,"prompt_tokens":5,"request_class":"short","kind":"cut"}}',
    )
    trace = read_trace(file_of(tmp_path, "\n".join(lines)))
    assert trace.left_out == 1
    assert [(r.due_at, r.request_class, r.output_tokens) for r in trace.requests] == [
        (0.0, "short", 1),
        (1.0, "long", 2),
    ]


def test_rows_without_output_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(file_of(tmp_path, MOONCAKE.replace('"output_length": 5', '"output_length": 0')))
    assert trace.left_out == 1
    assert len(trace.requests) == 2


def test_a_slice_is_read_no_further_than_asked(tmp_path: Path) -> None:
    path = file_of(tmp_path, AZURE + "\nthis line is broken\n")
    assert len(read_trace(path, part=Slice(first=2)).requests) == 2
    assert len(read_trace(path, part=Slice(until_s=4.5)).requests) == 2
    with pytest.raises(BadInput, match="line 5"):
        read_trace(path)


def test_a_slice_of_a_quiet_time_says_when_the_next_request_is_due(tmp_path: Path) -> None:
    """It said "0 rows ask for no output", as if that were why."""
    part = Slice(from_s=1.0, until_s=2.0)
    with pytest.raises(BadInput, match=r"from 1 s and before 2 s of its own time; the next .* at 4\.3"):
        read_trace(file_of(tmp_path, AZURE), part=part)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("hello\n", "line 1: not a workload: 'hello'"),
        ('{"input": 3}\n', "line 1: not a workload"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "line 1: not a workload"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        (AZURE + "\n2023-11-16 18:15:5", "line 5: .* is not a time and two numbers"),
        (AZURE + "\n2023-11-16 18:15:46,5,5", "line 5: out of order, 5.2.* s before"),
        (AZURE + "\n2023-11-16 18:15:59,-5,5", "line 5: -5 prompt tokens"),
        (AZURE + "\n2023-11-16 18:15:59,0,5", "line 5: 0 prompt tokens"),
        (AZURE + "\n2023-11-16 18:15:59,5,-1", "line 5: -1 output tokens"),
        (AZURE + "\n2023-11-16 18:15:59,99999999999,1", "line 5: 99999999999 prompt tokens"),
        (AZURE + "\n2029-11-16 18:15:59,5,1", "line 5: .* s after the first request"),
        (MOONCAKE[:-20], "line 3: "),
        (MOONCAKE.replace("[9]", "[9, 8]"), "line 3: 2 prefix ids for 10 tokens"),
        (MOONCAKE.replace("1025", '"many"'), "line 2: Expected `int`"),
        ('{"format":"headrace.measurement","version":1,"requests":3}\n', "promises 3 requests, 0 are there"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_line(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        read_trace(file_of(tmp_path, text))


def test_a_file_without_line_ends_is_not_read_whole(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="line 1 is longer than"):
        read_trace(file_of(tmp_path, b" " * (MOST_LINE_BYTES + 1)))


def test_a_missing_file_and_empty_slices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="the first 0 requests"):
        Slice(first=0)
    with pytest.raises(BadInput, match="from 0 s and before -1 s"):
        Slice(until_s=-1)


def test_the_form_can_be_said_where_the_first_line_does_not_tell(tmp_path: Path) -> None:
    path = file_of(tmp_path, "\n".join(AZURE.splitlines()[1:]))
    assert len(read_trace(path, trace_format=TraceFormat.AZURE).requests) == 3


def at(due_at: float) -> TraceRequest:
    return TraceRequest(due_at, 1, 1)


def test_twice_the_load_comes_in_half_the_time() -> None:
    assert [r.due_at for r in scaled([at(0), at(3)], 2)] == [0, 1.5]
    for nonsense in (0, -1, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="cannot be scaled"):
            scaled([at(0)], nonsense)


def test_requests_of_one_tick_are_spread_up_to_the_next() -> None:
    spread_out = spread([at(0), at(0), at(0), at(3), at(4), at(4)])
    assert [r.due_at for r in spread_out] == [0, 1, 2, 3, 4, 4]
