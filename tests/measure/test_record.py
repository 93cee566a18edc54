from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from headrace.core import whole_file
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.measure import record
from tests.measure.samples import failure, measurement, measurements, timeline

RUN = measurement(timeline(0.5), failure(), timeline(1.5))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    record.write(RUN, path)
    return path


def rewrite(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line
    path.write_bytes(b"".join(lines))


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        record.read(path)
    return str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(measurements)
def test_what_was_written_is_read_back_to_the_last_bit(tmp_path: Path, run: Measurement) -> None:
    path = tmp_path / "run.jsonl"

    record.write(run, path)

    assert record.read(path) == run


def test_a_record_has_one_line_for_each_request_after_its_head(written: Path) -> None:
    head, *lines = written.read_bytes().splitlines()

    assert head.startswith(b'{"format":"headrace.measurement","version":2,"requests":3,')
    assert [line.split(b":")[0] for line in lines] == [b'{"timeline"', b'{"failure"', b'{"timeline"']


def test_a_record_of_version_1_can_be_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"format":"headrace.measurement","version":1,"requests":2,"target":"http://h:1","model":"m",'
        '"settings":{"max_num_seqs":8,"watermark":0.5,"enable_prefix_caching":true,"scheduling_policy":"fcfs"},'
        '"workload":"w","seed":7,"duration_s":2.5,"versions":{"headrace":"0.1.0"}}\n'
        '{"timeline":{"request_id":"short-0","request_class":"short","prompt_tokens":40,"due_at":0.5,'
        '"sent_at":0.5,"token_at":[1.0,1.25],"finish_reason":"length","cached_tokens":32,"bill_s":{"kv":0.25}}}\n'
        '{"failure":{"request_id":"long-0","request_class":"long","prompt_tokens":4000,"due_at":1.0,'
        '"failed_at":2.0,"kind":"timed_out","reason":"too late","tokens_received":1}}\n'
    )

    run = record.read(path)

    assert run.settings == {
        "max_num_seqs": 8, "watermark": 0.5, "enable_prefix_caching": True, "scheduling_policy": "fcfs",
    }  # fmt: skip
    assert run.timelines[0].bill_s == {"kv": 0.25}
    assert run.failures[0].kind == "timed_out"


def test_a_record_takes_the_place_of_an_older_one_and_leaves_nothing_beside_it(written: Path) -> None:
    record.write(measurement(failure()), written)

    assert len(record.read(written).results) == 1
    assert list(written.parent.iterdir()) == [written]


def test_a_record_that_cannot_be_finished_leaves_the_older_one_as_it_was(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    before = written.read_bytes()
    monkeypatch.setattr(whole_file.os, "fsync", disk_full)

    with pytest.raises(BadInput, match="No space left on device"):
        record.write(measurement(failure()), written)
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_a_record_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        record.write(RUN, tmp_path / "nowhere" / "run.jsonl")


def test_wherever_a_record_is_cut_off_it_is_refused_and_not_shortened(written: Path) -> None:
    whole = written.read_bytes()

    for length in {*range(0, len(whole), 17), len(whole) - 1}:
        written.write_bytes(whole[:length])
        assert "line " in refusal(written)


def test_a_record_cut_between_two_lines_says_how_many_are_missing(written: Path) -> None:
    written.write_bytes(b"".join(written.read_bytes().splitlines(keepends=True)[:-1]))

    assert "ends in line 3: line 1 promises 3 requests, 2 are there" in refusal(written)


def test_more_lines_than_promised_are_refused(written: Path) -> None:
    written.write_bytes(written.read_bytes() + b"{}\n")

    assert "line 5: line 1 promises 3 requests, and here is another" in refusal(written)


@pytest.mark.parametrize(
    ("number", "line", "complaint"),
    [
        (1, b"hello\n", "line 1: not the head of a measurement"),
        (1, b"\xff\xfe\x00\n", "line 1: not the head of a measurement"),
        (1, b'{"format":"other","version":1}\n', "line 1: the format is 'other'"),
        (1, b'{"format":"headrace.measurement","version":3}\n', "line 1: version 3"),
        (1, b'{"format":"headrace.measurement","version":1,"requests":"3"}\n', "line 1: Expected `int`"),
        (2, b"{}\n", "line 2: neither a timeline nor a failure"),
        (3, b'{"failure":{"request_id":"r"}}\n', "line 3: Object missing required field"),
        (4, b"nonsense\n", "line 4: JSON is malformed"),
        (
            2,
            (
                b'{"timeline":{"request_id":"r","request_class":"c","prompt_tokens":1,"due_at":2,'
                b'"sent_at":1,"token_at":[3],"finish_reason":"stop"}}\n'
            ),
            "line 2: a Timeline must not run backwards",
        ),
    ],
)
def test_a_wrong_line_is_named(written: Path, number: int, line: bytes, complaint: str) -> None:
    rewrite(written, number, line)

    assert complaint in refusal(written)


def test_no_file_is_no_traceback(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "none.jsonl")
    assert "cannot be read" in refusal(tmp_path)


def test_a_record_of_version_1_is_read_and_what_it_lacks_is_not_on_record(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(
        b'{"format":"headrace.measurement","version":1,"requests":1,"target":"t","model":"m","settings":{},'
        b'"workload":"w","seed":1,"duration_s":2.0,"versions":{}}\n'
        b'{"timeline":{"request_id":"r","request_class":"c","prompt_tokens":1,"due_at":0,"sent_at":0,'
        b'"token_at":[1],"finish_reason":"stop"}}\n'
    )

    run = record.read(path)

    assert (run.warm_up_s, run.client, run.server, run.alone) == (0.0, None, None, ())
    assert run.timelines[0].usage_tokens is None
