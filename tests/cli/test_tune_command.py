"""`headrace tune`, the whole flow on servers with a scripted model: it ends well and leaves nobody behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from headrace.cli.main import main
from headrace.cli.quantity import Duration
from headrace.cli.tuning import EmbeddedJudge, Overloaded, Plan, Teller, fitted_workload, tune_embedded
from headrace.core.errors import BadInput
from headrace.core.trial import Verdict
from headrace.measure import record
from tests.cli.scripted_headrace import MAX_MODEL_LEN, WORKLOAD

SCRIPTED = Path(__file__).with_name("scripted_headrace.py")
PROGRAM = (sys.executable, str(SCRIPTED))
MARK = "HEADRACE_TEST_MARK"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def eventually(condition: Callable[[], bool], bound_s: float = 20.0) -> bool:
    deadline = time.monotonic() + bound_s
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


@dataclass
class Tuner:
    """`headrace tune` in a process of its own, and whatever it has started."""

    process: "subprocess.Popen[str]"
    mark: str

    def pids(self, containing: str = "") -> list[int]:
        """Living processes that carry our mark in their environment."""
        return [pid for pid in _all_pids() if self._is_ours(pid, containing)]

    def _is_ours(self, pid: int, containing: str) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return False
        return f"{MARK}={self.mark}".encode() in environment and containing.encode() in command

    def wait_for(self, word: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return line
        raise AssertionError(f"it ended without saying {word!r}")

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, out, err


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


@pytest.fixture
def start() -> Generator[Callable[[Sequence[str]], Tuner], None, None]:
    started: list[Tuner] = []

    def start_one(options: Sequence[str]) -> Tuner:
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [*PROGRAM, "tune", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: mark},
        )
        started.append(Tuner(process, mark))
        return started[-1]

    yield start_one
    for tuner in started:
        tuner.process.kill()
        tuner.process.communicate()
        for pid in tuner.pids():
            os.kill(pid, signal.SIGKILL)


@on_linux
@pytest.mark.slow
def test_the_improvement_is_found_shown_and_recorded(
    start: Callable[[Sequence[str]], Tuner], tmp_path: Path
) -> None:
    tuner = start(["--json", "--max-trials", "6", "--output-dir", str(tmp_path)])
    code, out, err = tuner.finish()
    assert code == 0, err
    line = json.loads(out.splitlines()[-1])
    assert line["verdict"] == "improved"
    assert line["recommended"]["long_prefill_token_threshold"] > 0
    assert line["best"]["short"]["p95_ttft_s"] < 0.7 * line["baseline"]["short"]["p95_ttft_s"]
    assert line["best"]["throughput_rps"] > 0.95 * line["baseline"]["throughput_rps"]
    assert out.startswith("\nIMPROVED: short requests")
    assert "vllm serve MODEL --long-prefill-token-threshold" in out
    assert max(len(each) for each in out.splitlines()[:-1]) <= 80
    assert "run 6 of 6" in err
    records = [record.read(path) for path in sorted(tmp_path.iterdir())]
    assert len(records) == 6
    assert records[0].settings["max_num_batched_tokens"] == 2048
    assert records[1].settings["long_prefill_token_threshold"] == 256
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_the_server_and_shows_what_was_learned(
    start: Callable[[Sequence[str]], Tuner], number: signal.Signals
) -> None:
    tuner = start(["--max-trials", "6"])
    tuner.wait_for("run 2")
    assert eventually(lambda: bool(tuner.pids(" serve ")))
    tuner.process.send_signal(number)
    code, out, err = tuner.finish()
    assert code == 130
    assert "interrupted" in err
    assert "INCONCLUSIVE" in out
    assert "the starting settings" in out
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
def test_an_interruption_before_anything_was_measured_says_so(
    start: Callable[[Sequence[str]], Tuner],
) -> None:
    tuner = start(["--json"])
    tuner.wait_for("run 1")
    tuner.process.send_signal(signal.SIGINT)
    code, out, _ = tuner.finish()
    assert code == 130
    assert "NOTHING MEASURED" in out
    assert json.loads(out.splitlines()[-1])["verdict"] == "inconclusive"
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
def test_a_server_killed_in_a_trial_is_a_failed_trial_and_not_the_end(
    start: Callable[[Sequence[str]], Tuner],
) -> None:
    tuner = start(["--json", "--max-trials", "3"])
    tuner.wait_for("run 2")
    assert eventually(lambda: bool(tuner.pids(" serve ")))
    os.kill(min(tuner.pids(" serve ")), signal.SIGKILL)
    code, out, err = tuner.finish()
    assert code == 0, err
    trials = json.loads(out.splitlines()[-1])["trials"]
    assert "ended" in trials[1]["failed"]
    assert "short" in trials[2]
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
def test_a_tuner_that_is_killed_takes_its_server_with_it(start: Callable[[Sequence[str]], Tuner]) -> None:
    tuner = start([])
    tuner.wait_for("run 1")
    assert eventually(lambda: len(tuner.pids(" serve ")) > 0)
    tuner.process.kill()
    assert eventually(lambda: not tuner.pids())


@pytest.mark.slow
def test_a_record_that_cannot_be_kept_ends_the_judge_without_a_server_left(tmp_path: Path) -> None:
    plan = Plan(
        "scripted", MAX_MODEL_LEN, time.monotonic() + 60, output_dir=tmp_path / "gone", program=PROGRAM
    )
    judge = EmbeddedJudge(plan, WORKLOAD, {}, Console(stderr=True))
    before = set(_children())
    with pytest.raises(BadInput, match="cannot be written"):
        judge({})
    assert set(_children()) <= before


def _children() -> list[int]:
    command = ["ps", "-o", "pid=", "--ppid", str(os.getpid())]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(pid) for pid in listing.stdout.split() if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_a_start_that_cannot_be_served_says_why() -> None:
    plan = Plan("scripted", MAX_MODEL_LEN, time.monotonic() + 60, program=(sys.executable, "-c", "1 / 0"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        tune_embedded(plan, Console(stderr=True))


@pytest.mark.slow
def test_the_load_is_fitted_to_the_machine() -> None:
    plan = Plan("scripted", MAX_MODEL_LEN, time.monotonic() + 300, long_rps=0.5, program=PROGRAM)
    workload, around_s = fitted_workload(plan, Teller(Console(stderr=True), plan.ends_at))
    assert around_s > 0
    assert workload.short_rps > 1
    assert workload.long_rps == 0.5
    assert 12 <= workload.duration_s <= 60


@pytest.mark.slow
def test_a_start_that_falls_behind_is_not_judged_unless_the_load_is_wanted() -> None:
    plan = Plan("scripted", MAX_MODEL_LEN, time.monotonic() + 60, program=PROGRAM)
    flood = replace(WORKLOAD, long_rps=6, duration_s=1)
    judge = EmbeddedJudge(plan, flood, {}, Console(stderr=True))
    with pytest.raises(Overloaded) as caught:
        judge({})
    assert caught.value.took_s > 1.2 * flood.duration_s
    assert judge({}).duration_s > 1.2 * flood.duration_s  # later runs are results, whatever they show
    tolerant = EmbeddedJudge(plan, flood, {}, Console(stderr=True))
    tolerant.tolerates_overload = True
    assert tolerant({}).duration_s > 1.2 * flood.duration_s


def test_a_context_too_short_for_documents_is_refused() -> None:
    with pytest.raises(BadInput, match="no room for documents"):
        tune_embedded(Plan("tiny", 512, time.monotonic() + 60), Console(stderr=True))


@pytest.mark.parametrize(
    ("text", "amount_s"), [("6m", 360), ("90s", 90), ("90", 90), ("1h30m", 5400), ("1m30s", 90), ("0.5", 0.5)]
)
def test_durations_are_read_as_people_write_them(text: str, amount_s: float) -> None:
    assert Duration().convert(text, None, None) == amount_s


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--budget", "soon"], "is no duration"),
        (["--budget", ""], "is no duration"),
        (["--budget", "10s"], "too short"),
        (["--max-trials", "0"], "--max-trials"),
        (["--short-rps", "-1"], "short_rps is -1"),
        (["--long-rps", "nan"], "long_rps is nan"),
        (["--short-rps", "0", "--long-rps", "0"], "nothing would be sent"),
        (["--output-dir", "/dev/null/x"], "cannot be made"),
        (["no-such-model"], "no-such-model"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(options: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, ["tune", *options])
    assert result.exit_code == 2
    assert complaint in result.output


def test_help_shows_examples() -> None:
    result = CliRunner().invoke(main, ["tune", "--help"])
    assert result.exit_code == 0
    assert "headrace tune smollm2 --budget 15m" in result.output


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_is_tuned_within_its_budget() -> None:
    began = time.monotonic()
    result = CliRunner().invoke(main, ["tune", "--budget", "100s", "--max-trials", "2", "--json"])
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    assert line["verdict"] in set(Verdict)
    assert line["baseline"]["short"]["p95_ttft_s"] > 0
    assert line["recommended"]["max_num_batched_tokens"] == 2048
    assert time.monotonic() - began < 250
