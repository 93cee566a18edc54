"""Whatever a file holds: its requests, or one error that a person can read."""

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.workload.forms import TraceFormat
from headrace.workload.own_form import write_workload
from headrace.workload.readers import read_trace
from headrace.workload.trace import About, TraceRequest

BEGINNINGS = (
    b"",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,4,7,11,API log\n",
    b'{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}\n',
    b'{"arrival_time_ns":1,"input_toks":40,"output_toks":5,"hash_ids":[0,1]}\n',
    b'{"format":"headrace.workload","version":1}\n{"at_ns":1,"prompt_tokens":4,"output_tokens":4}\n',
    b'{"format":"headrace.measurement","version":1,"requests":1}\n',
    b'{"date": "x", "backend": "vllm", "num_prompts": 1, "input_lens": [1], "output_lens": ',
    b'{"ts": 1, "prompt": "x", "usage": {"prompt_tokens": 4, "completion_tokens": 4}}\n',
    b"INFO 11-30 07:00:50 [x.py:1] Received request a: params: SamplingParams(max_tokens=4)\n",
)
values = st.sampled_from(
    [b"0", b"-1", b"1e999", b"NaN", b'"x"', b"null", b"[]", b"{}", b"99999999999999999999999", b"\xff"]
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A form's beginning with one number in it replaced, then anything."""
    text = draw(st.sampled_from(BEGINNINGS))
    digits = [place for place, letter in enumerate(text) if chr(letter).isdigit()]
    if digits and draw(st.booleans()):
        place = draw(st.sampled_from(digits))
        text = text[:place] + draw(values) + text[place + 1 :]
    return text + draw(st.binary(max_size=60)) + draw(st.sampled_from([b"", text]))


@given(spoiled(), st.sampled_from([None, None, None, *TraceFormat]))
def test_any_bytes_are_requests_or_one_readable_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, form: TraceFormat | None
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "file"
    path.write_bytes(content)
    with suppress(BadInput):
        for request in read_trace(path, trace_format=form).requests:
            assert request.prompt_tokens >= 1
            assert request.output_tokens >= 1
            assert request.due_at >= 0


names = st.text(max_size=8)


@given(
    st.lists(
        st.builds(
            TraceRequest,
            due_at=st.integers(0, 10**15).map(lambda ns: ns / 1e9),
            prompt_tokens=st.integers(1, 1 << 24),
            output_tokens=st.integers(1, 1 << 24),
            request_class=names,
            priority=st.integers(-(2**31), 2**31),
            prefix_ids=st.lists(st.integers(0, (1 << 53) - 1), max_size=5).map(tuple),
            tenant=names,
            session=names,
            think_s=st.none() | st.integers(0, 10**12).map(lambda ns: ns / 1e9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]
) -> None:
    path: Path = tmp_path_factory.mktemp("own") / "w.jsonl"
    ordered = sorted(requests, key=lambda request: request.due_at)
    write_workload(path, About("anything", None, "", 16), ordered)
    read = read_trace(path).requests
    for before, after in zip(ordered, read, strict=True):
        expected = (
            before.due_at,
            before.prompt_tokens,
            before.request_class,
            before.prefix_ids,
            before.think_s,
        )
        assert (
            after.due_at,
            after.prompt_tokens,
            after.request_class,
            after.prefix_ids,
            after.think_s,
        ) == expected
        assert (after.tenant, after.session, after.priority) == (
            before.tenant,
            before.session,
            before.priority,
        )


def test_a_compressed_trace_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    rows = "".join(f'{{"timestamp": {n}, "input_length": 9, "output_length": 3}}\n' for n in range(5000))
    packed = gzip.compress(rows.encode())
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(packed)
    assert len(read_trace(path).requests) == 5000

    for cut_off in (packed[: len(packed) // 2], packed[:-3], packed[:5]):
        path.write_bytes(cut_off)
        with pytest.raises(BadInput, match="compressed with gzip, and damaged or cut off"):
            read_trace(path)
    path.write_bytes(packed[:300] + b"\0" * 40 + packed[340:])
    with pytest.raises(BadInput):
        read_trace(path)
