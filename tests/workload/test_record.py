"""Recording turns logs into workloads: lengths and who shares what are kept, and no word of anybody's."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.main import main
from headrace.core.errors import BadInput
from headrace.workload.forms import TraceFormat
from headrace.workload.prefix_names import PrefixNames
from headrace.workload.readers import read_trace
from headrace.workload.recorded import Recorded, record_logs

SALT = bytes(32)
SYSTEM = "You are a helper of the Acme company. " * 20
SECRET = "my password is hunter2"


def entry(at: Any, number: int, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{number} {SECRET} " * 20},
    ]
    return {
        "timestamp": at,
        "request": {"model": "m", "messages": messages, "user": f"alice-{number % 2}"},
        "usage": {"prompt_tokens": 300 + number, "completion_tokens": 20 + number},
    } | more


def log_of(folder: Path, entries: list[dict[str, Any]], name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path


def recorded(*paths: Path, names: PrefixNames | None = None) -> Recorded:
    return record_logs(paths, names or PrefixNames(SALT), None)


def test_a_log_in_order_of_endings_becomes_a_workload_in_order_of_arrival(tmp_path: Path) -> None:
    result = recorded(log_of(tmp_path, [entry(1700000002.5, 1), entry(1700000000, 0), entry(1700000009, 2)]))
    assert [(r.due_at, r.prompt_tokens, r.output_tokens) for r in result.requests] == [
        (0.0, 300, 20),
        (2.5, 301, 21),
        (9.0, 302, 22),
    ]
    first, second, third = (r.prefix_ids for r in result.requests)
    assert first[:2] == second[:2] == third[:2], "the system prompt is shared"
    assert first[3] != second[3]
    assert all(len(r.prefix_ids) <= r.prompt_tokens // 64 for r in result.requests)
    tenants = [r.tenant for r in result.requests]
    assert tenants[0] == tenants[2] != tenants[1]


@pytest.mark.parametrize(
    "at",
    [1700000000, 1700000000.0, 1700000000000, 1700000000000000, 1700000000000000000, "2023-11-14T22:13:20Z"],
)
def test_times_are_known_in_every_unit(tmp_path: Path, at: Any) -> None:
    path = log_of(tmp_path, [entry(at, 0), entry("2023-11-14T22:13:21+00:00", 1)])
    assert [r.due_at for r in recorded(path).requests] == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize(
    "line",
    [
        {"startTime": 5.0, "prompt_tokens": 9, "completion_tokens": 3, "messages": [], "end_user": "u"},
        {"created": 5, "usage": {"prompt_tokens": 9, "completion_tokens": 3}, "object": "chat.completion"},
        {"created_at": 5, "input": "hi", "usage": {"input_tokens": 9, "output_tokens": 3}},
        {
            "ts": 5,
            "body": {"prompt": "hi"},
            "response": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}},
        },
        {"time": 5, "input_tokens": 9, "output_tokens": 3},
    ],
)
def test_the_forms_of_gateways_and_apis_are_known(tmp_path: Path, line: dict[str, Any]) -> None:
    result = recorded(log_of(tmp_path, [line]))
    assert [(r.prompt_tokens, r.output_tokens) for r in result.requests] == [(9, 3)]


def test_no_text_no_name_and_no_salt_get_out(tmp_path: Path) -> None:
    log = log_of(tmp_path, [entry(number, number, session_id="thread-bob") for number in range(1, 6)])
    output = tmp_path / "out.jsonl"
    result = record("--output", output, log)
    assert result.exit_code == 0, result.output
    written = output.read_text() + result.output
    for word in ("Acme", "hunter2", "alice", "thread", "bob", "helper"):
        assert word not in written
    assert {*json.loads(written.splitlines()[1])} <= {
        *("at_ns", "prompt_tokens", "output_tokens", "tenant", "session", "prefix_ids"),
    }


def test_names_differ_from_one_recording_to_another_unless_a_salt_is_given(tmp_path: Path) -> None:
    log, salt = log_of(tmp_path, [entry(1, 0)]), tmp_path / "salt"
    salt.write_bytes(b"x" * 16)
    ids = [_ids(tmp_path, log) for _ in range(2)]
    assert not set(ids[0]) & set(ids[1])
    assert _ids(tmp_path, log, "--salt", salt) == _ids(tmp_path, log, "--salt", salt)
    salt.write_bytes(b"short")
    assert "holds 5 bytes" in record("--output", tmp_path / "o", log, "--salt", salt).stderr


def _ids(folder: Path, log: Path, *more: str | Path) -> tuple[int, ...]:
    output = folder / "ids.jsonl"
    assert record("--output", output, log, *more).exit_code == 0
    return read_trace(output).requests[0].prefix_ids


@given(
    st.lists(st.integers(0, 3), max_size=200), st.lists(st.integers(0, 3), max_size=200), st.integers(1, 16)
)
def test_ids_are_shared_exactly_as_far_as_whole_blocks_of_tokens_are(
    left: list[int], right: list[int], block: int
) -> None:
    names = PrefixNames(SALT, block)
    common = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    shared_tokens = min(len(left), len(right)) if common is None else common
    shared_ids = sum(a == b for a, b in zip(names.of_tokens(left), names.of_tokens(right), strict=False))
    assert shared_ids == shared_tokens // block
    assert len(names.of_tokens(left)) == len(left) // block


def test_a_tokenizer_counts_what_the_log_does_not(tmp_path: Path) -> None:
    line = {"ts": 1, "prompt": "abcdefgh", "completion_tokens": 4}
    path = log_of(tmp_path, [line])
    with pytest.raises(BadInput, match="line 1: an answer of 4 tokens, and no number of prompt tokens"):
        recorded(path)
    letters = PrefixNames(SALT, 4, lambda text: list(text.encode()))
    (request,) = recorded(path, names=letters).requests
    assert (request.prompt_tokens, len(request.prefix_ids)) == (8, 2)


def test_lines_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    failed = {"timestamp": 2, "request": {"prompt": "x"}, "error": "busy"}
    result = recorded(log_of(tmp_path, [entry(1, 0), failed]))
    assert (len(result.requests), result.left_out) == (1, 1)


def test_several_logs_become_one(tmp_path: Path) -> None:
    late, early = log_of(tmp_path, [entry(9, 1)], "a"), log_of(tmp_path, [entry(5, 0)], "b")
    assert [r.due_at for r in recorded(late, early).requests] == [0.0, 4.0]


def test_vllms_log_is_recorded_by_its_token_ids(tmp_path: Path) -> None:
    result = recorded(Path(__file__).parent / "vllm_requests.log")
    assert result.trace_format is TraceFormat.VLLM_LOG
    assert result.requests[0].prefix_ids[0] == result.requests[1].prefix_ids[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '{"ts": 1, "prompt": "x", "usage": {"completion_tokens": 1, "prompt_tokens": -4}}',
            "-4 prompt tokens",
        ),
        ('{"ts": 1, "prompt": "x"}\n{"prompt": "y"}', "line 2: no time of arrival"),
        ('{"ts": "soon", "prompt": "x"}', "line 1: no time of arrival in 'soon'"),
        ('{"ts": 1e300, "prompt": "x"}', "line 1: no time of arrival"),
        ('{"ts": 1, "prompt": "x"}\n{"ts": 2, "pro', "line 2: .*truncated"),
        ('{"ts": 1, "prompt": "x"}', "holds no request; 0 rows|1 rows ask for no output"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5}', "is no log but a workload already"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        recorded(path)


def record(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["record", *map(str, arguments)])


def test_turns_wait_for_the_answer_before_them_as_long_as_they_did(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        [
            entry(100.0, 0, session_id="s", end_time=103.0),
            entry(104.5, 1, session_id="s", latency_ms=2000),
            entry(105.0, 2, session_id="s", end_time=107.0),  # a call beside the one before it
            entry(110.0, 3, session_id="s"),
            entry(112.0, 4, session_id="s"),  # nobody knows when the answer before it ended
            entry(113.0, 5, session_id="other", end_time=90.0),
            entry(114.0, 6, session_id="other"),
        ],
    )
    assert [request.think_s for request in recorded(log).requests] == [None, 1.5, None, 3.0, None, None, None]
