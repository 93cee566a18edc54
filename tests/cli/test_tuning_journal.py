"""The journal of a tuning: whatever moment a process dies at, what was measured is there, and only that."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.tuning_journal import NAME, Journal, Made, default_folder, file_identity
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.core.timeline import Timeline
from headrace.core.trial import Purpose

QUESTION = {"target": "smollm2", "goal": "p95 ttft"}


def measurement(seed: int = 0) -> Measurement:
    line = Timeline("short-0", "short", 10, 0.0, 0.0, (0.5, 0.6), "length")
    return Measurement("t", "m", {"max_num_seqs": 8}, "w", seed, 1.0, (line,))


def made(journal: Journal, failed: str | None = None) -> Made:
    record = None if failed else journal.next_record()
    return Made({"max_num_seqs": 8}, 1.0, Purpose.CHECK, 3.5, "2026-11-30T12:00:00Z", "serve", record, failed)


def test_what_was_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    with Journal.opened(tmp_path / "j", QUESTION) as journal:
        journal.keep_survey({"around_s": 3})
        journal.keep(made(journal), measurement(1))
        journal.keep(made(journal, "out of memory"), None)
        kept = list(journal.runs)
    with Journal.opened(tmp_path / "j", QUESTION) as again:
        assert again.runs == kept
        assert again.survey is not None
        assert msgspec.json.decode(again.survey) == {"around_s": 3}
        assert again.measurement(again.runs[0]) == measurement(1)
        assert again.measurement(again.runs[1]) is None
        assert again.next_record() == "run-03.jsonl"


@given(st.data())
def test_cut_off_anywhere_it_goes_on_from_the_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with Journal.opened(folder, QUESTION) as journal:
        for number in range(3):
            journal.keep(made(journal, f"cause {number}"), None)
    whole = (folder / NAME).read_bytes()
    end = data.draw(st.integers(0, len(whole)))
    (folder / NAME).write_bytes(whole[:end])
    with Journal.opened(folder, QUESTION) as journal:
        assert len(journal.runs) == max(0, whole[:end].count(b"\n") - 1)
        journal.keep(made(journal, "after"), None)
    with Journal.opened(folder, QUESTION) as journal:
        assert journal.runs[-1].failed == "after"


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with Journal.opened(tmp_path, QUESTION), pytest.raises(BadInput, match="another tuning is writing"):
        Journal.opened(tmp_path, QUESTION)
    Journal.opened(tmp_path, QUESTION).__exit__()


def test_fresh_forgets_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    with Journal.opened(tmp_path, QUESTION) as journal:
        journal.keep(made(journal), measurement())
        journal.cost.write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    with Journal.opened(tmp_path, {"target": "other"}, fresh=True) as journal:
        assert not journal.runs
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "notes.txt"]


def test_the_journal_of_another_question_is_not_gone_on_with(tmp_path: Path) -> None:
    Journal.opened(tmp_path, QUESTION).__exit__()
    with pytest.raises(BadInput, match="goal was 'p95 ttft' and is 'p99 itl'") as refused:
        Journal.opened(tmp_path, QUESTION | {"goal": "p99 itl"})
    assert "--fresh" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}\n", "no journal of version 1"),
        ("hello\n", "line 1"),
        ('{"format": "headrace.tune", "version": 2, "question": {}}\n', "no journal of version 1"),
        ('{"run": {"load": "much"}}\n', "line 1"),
    ],
)
def test_what_is_no_journal_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadInput, match=complaint):
        Journal.opened(tmp_path, QUESTION)


def test_a_record_that_is_gone_is_said(tmp_path: Path) -> None:
    with Journal.opened(tmp_path, QUESTION) as journal:
        journal.keep(made(journal), measurement())
        (tmp_path / "run-01.jsonl").unlink()
        with pytest.raises(BadInput, match=r"run-01\.jsonl cannot be read"):
            journal.measurement(journal.runs[0])


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        Journal.opened(Path("/dev/null/x"), QUESTION)


def test_equal_questions_have_one_folder_and_equal_files_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    backwards = dict(reversed(list(QUESTION.items())))
    assert default_folder(QUESTION) == default_folder(backwards)
    assert default_folder(QUESTION) != default_folder(QUESTION | {"goal": "other"})
    assert default_folder(QUESTION).is_relative_to(tmp_path / "headrace")
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "w.csv").write_text("1,2\n")
    assert file_identity(tmp_path / "a" / "w.csv") == file_identity(tmp_path / "b" / "w.csv")
    with pytest.raises(BadInput, match="cannot be read"):
        file_identity(tmp_path / "none")
