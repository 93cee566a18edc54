"""`headrace tune`, the whole flow on servers with a scripted model: it ends well and leaves nobody behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.cli.quantity import Duration
from headrace.cli.tuning_journal import NAME
from headrace.measure import record
from headrace.targets.embedded import EmbeddedServer
from tests.cli.scripted_headrace import nothing_to_find_out

SCRIPTED = Path(__file__).with_name("scripted_headrace.py")
PROGRAM = (sys.executable, str(SCRIPTED))
MARK = "HEADRACE_TEST_MARK"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


ANSWERED = (0, 3, 5)
"""An answer, inconclusive, or drifted: what others do on the machine decides which."""


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
        out, err = self.process.communicate(timeout=280)
        return self.process.returncode, out, err


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


Start = Callable[..., Tuner]
"""(options, how=...) -> a tuner whose servers behave like that."""


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start, None, None]:
    started: list[Tuner] = []

    def start_one(options: Sequence[str], how: str = "well") -> Tuner:
        mark = uuid.uuid4().hex
        journal = [] if "--journal" in options else ["--journal", str(tmp_path / "journal")]
        process = subprocess.Popen(
            [*PROGRAM, "tune", *options, *journal],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: mark, "HEADRACE_TEST_SERVER": how, "HEADRACE_TEST_FOLDER": str(tmp_path)},
        )
        started.append(Tuner(process, mark))
        return started[-1]

    yield start_one
    for tuner in started:
        tuner.process.kill()
        tuner.process.communicate()
        for pid in tuner.pids():
            os.kill(pid, signal.SIGKILL)


def without_clock(line: dict[str, Any]) -> dict[str, Any]:
    """But for how long simulations took."""
    searched = {name: value for name, value in line["searched"].items() if name != "twin_s"}
    return line | {"searched": searched}


def without_effort(line: dict[str, Any]) -> dict[str, Any]:
    """But for what the process spent: who measures also searches between runs, who reads does not."""
    return line | {"searched": {"twin": line["searched"]["twin"]}}


def has_ended(tuner: Tuner) -> bool:
    return not tuner.pids()


def improving(start: Start, folder: Path, attempts: int = 3) -> tuple[Tuner, str, str, Path]:
    """Runs are of real time: who shares the machine may drown one tuning in noise, hardly three."""
    journal = folder / f"journal{attempts}"
    tuner = start(["--json", "--max-trials", "7", "--journal", str(journal)])
    code, out, err = tuner.finish()
    if code == 0 and json.loads(out.splitlines()[-1])["verdict"] == "improved":
        return tuner, out, err, journal
    assert attempts > 1, err + out
    return improving(start, folder, attempts - 1)


@on_linux
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_improvement_is_found_shown_and_recorded(start: Start, tmp_path: Path) -> None:
    tuner, out, err, journal = improving(start, tmp_path)
    line = json.loads(out.splitlines()[-1])
    assert line["recommended"]
    latencies = {(each["class"], each["latency"]): each for each in line["compared"]["latencies"]}
    p95 = latencies["short", "P95 TTFT"]
    assert p95["after"]["value"] < 0.7 * p95["before"]["value"]
    rates = line["compared"]["throughput_rps"]
    assert rates["after"]["value"] > 0.95 * rates["before"]["value"]
    assert out.startswith("\nIMPROVED")
    assert line["command"].startswith("headrace serve scripted --")
    assert max(len(each) for each in out.splitlines()[:-1]) <= 80
    headings = ("1 Goal", "2 Workload", "3 Safety first", "4 Main budgets")
    assert [err.index(each) for each in headings] == sorted(err.index(each) for each in headings)
    records = [record.read(path) for path in sorted(journal.glob("run-*.jsonl"))]
    assert len(records) == len(line["trials"]) <= 7
    assert not records[0].settings
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_the_server_and_the_same_command_goes_on(
    start: Start, number: signal.Signals, tmp_path: Path
) -> None:
    tuner = start(["--max-trials", "4"])
    tuner.wait_for("run 3")
    assert eventually(lambda: bool(tuner.pids(" serve ")))
    tuner.process.send_signal(number)
    code, out, err = tuner.finish()
    assert code == 130
    assert out.startswith("\nINTERRUPTED")
    assert "the same command goes on from here" in " ".join(err.split())
    assert not tuner.pids()
    before = (tmp_path / "journal" / NAME).read_bytes()
    again = start(["--max-trials", "4"])
    again.finish()
    assert (tmp_path / "journal" / NAME).read_bytes().startswith(before)
    assert not again.pids()


@on_linux
@pytest.mark.slow
def test_an_interruption_before_anything_was_measured_leaves_nothing_behind(start: Start) -> None:
    tuner = start(["--json"])
    tuner.wait_for("run 1")
    tuner.process.send_signal(signal.SIGINT)
    code, _, _ = tuner.finish()
    assert code == 130
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_ten_moments_nothing_is_measured_twice_and_no_server_stays(
    start: Start, tmp_path: Path
) -> None:
    journal, chance = tmp_path / "journal" / NAME, Random(4)
    lines: list[bytes] = []
    for _ in range(10):
        tuner = start(["--max-trials", "6", "--json"])
        time.sleep(chance.uniform(0.5, 7))
        tuner.process.kill()
        tuner.process.wait()
        assert eventually(partial(has_ended, tuner)), "a server was left behind"
        kept = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
        kept = [line for line in kept if line.endswith(b"\n")]
        assert kept[: len(lines)] == lines, "what was measured stays as it was"
        lines = kept
    code, out, err = start(["--max-trials", "6", "--json"]).finish()
    assert code in ANSWERED, err
    answer = json.loads(out.splitlines()[-1])
    assert len(answer["trials"]) <= 6
    whole = journal.read_bytes()
    code_again, out_again, _ = start(["--max-trials", "6", "--json"]).finish()
    assert (code_again, journal.read_bytes()) == (code, whole), "asked again, it measures nothing"
    assert without_effort(json.loads(out_again.splitlines()[-1])) == without_effort(answer)


@on_linux
@pytest.mark.slow
def test_a_server_killed_in_a_trial_is_a_failed_trial_and_not_the_end(start: Start) -> None:
    tuner = start(["--json", "--max-trials", "4"])
    tuner.wait_for("run 3")
    before = {*tuner.pids(" serve ")}  # the server of run 2 may not have ended yet
    assert eventually(lambda: bool({*tuner.pids(" serve ")} - before))
    os.kill(min({*tuner.pids(" serve ")} - before), signal.SIGKILL)
    code, out, err = tuner.finish()
    assert code in ANSWERED, err
    trials = json.loads(out.splitlines()[-1])["trials"]
    assert "ended" in trials[2]["result"]["failed_because"]
    assert len(trials) == 4
    assert not tuner.pids()


@on_linux
@pytest.mark.slow
def test_settings_under_which_the_server_crashes_are_a_finding_with_its_cause(start: Start) -> None:
    code, out, err = start(["--json", "--max-trials", "7"], how="crashes").finish()
    assert code in ANSWERED, err
    line = json.loads(out.splitlines()[-1])
    results = [trial["result"] for trial in line["trials"]]
    causes = [result["failed_because"] for result in results if "failed_because" in result]
    assert causes, "after the baseline, other settings are tried"
    assert all("no room for so many chunks" in cause for cause in causes)
    assert not line["recommended"]


@on_linux
@pytest.mark.slow
def test_a_noisy_server_gets_no_more_than_the_noise_allows(start: Start) -> None:
    code, out, err = start(["--json", "--max-trials", "6"], how="noisy").finish()
    assert code in {0, 3, 5}, err
    line = json.loads(out.splitlines()[-1])
    assert line["verdict"] != "improved" or line["gain"]["ratio_at_most"] <= 0.95


@on_linux
@pytest.mark.slow
def test_a_server_that_drifts_ends_with_an_answer(start: Start) -> None:
    code, out, err = start(["--json", "--max-trials", "7"], how="drifts").finish()
    assert code in {0, 3, 5}, err
    line = json.loads(out.splitlines()[-1])
    assert line["verdict"] in {"drifted", "inconclusive", "nothing_better", "improved"}
    assert line["verdict"] != "improved" or line["gain"]["ratio_at_most"] <= 0.95


@on_linux
@pytest.mark.slow
def test_a_goal_nobody_can_meet_is_told_with_how_near_one_gets(start: Start) -> None:
    code, out, err = start(["--json", "--max-trials", "6", "--slo", "short: p95 ttft < 1ms"]).finish()
    assert code in {3, 4, 5}, err
    assert json.loads(out.splitlines()[-1])["verdict"] in {"unreachable", "inconclusive", "drifted"}


@on_linux
@pytest.mark.slow
def test_a_tuner_that_is_killed_takes_its_server_with_it(start: Start) -> None:
    tuner = start([])
    tuner.wait_for("run 1")
    assert eventually(lambda: len(tuner.pids(" serve ")) > 0)
    tuner.process.kill()
    assert eventually(lambda: not tuner.pids())


@pytest.mark.slow
def test_a_server_of_somebody_else_is_measured_twice_advised_and_left_as_it_was(tmp_path: Path) -> None:
    with EmbeddedServer("scripted", {}, program=PROGRAM) as server:
        session = server.session
        options = ["--target", server.url, "--slo", "short: p95 ttft < 200ms", "--aim", "latency", "--json"]
        with nothing_to_find_out():
            result = CliRunner().invoke(main, ["tune", *options, "--journal", str(tmp_path)])
        assert server.session == session
        server.check_alive()
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    assert [trial["settings"] for trial in line["trials"]] == [{}, {}]
    assert line["advice"]["settings"]
    assert not line["recommended"], "nothing of it was measured"


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
        (["--slo", "fast please"], "is no objective"),
        (["--aim", "capacity"], "needs limits"),
        (["--out", "x.yaml"], "--manifest"),
        (["--manifest", "/nowhere.yaml"], "cannot be read"),
        (["--workload", "/nowhere.csv", "--short-rps", "2"], "of the built-in mix"),
        (["--target", "vllm", "--vllm-folder", "/nowhere"], "no vLLM in /nowhere"),
        (["--target", "vllm", "smollm2"], "serves the model in its folder"),
        (["--target", "embedded", "--", "vllm", "serve", "m"], "two things to tune"),
        (["--target", "localhost:8000", "smollm2"], "one thing too many"),
        (["--target", "no-such-gpu/card"], "no model"),
        (["--target", "no-such-target", "--dry-run"], "no cost model"),
        (["--target", "llama-3.1-8b/h1000", "--dry-run"], "h1000"),
        (["no-such-model"], "no-such-model"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(
    options: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = CliRunner().invoke(main, ["tune", *options])
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())


def test_help_shows_examples_within_80_columns() -> None:
    result = CliRunner().invoke(main, ["tune", "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert "headrace tune --target vllm --workload monday.jsonl" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_is_tuned_within_its_budget(tmp_path: Path) -> None:
    began = time.monotonic()
    options = ["--budget", "120s", "--max-trials", "3", "--json", "--journal", str(tmp_path)]
    result = CliRunner().invoke(main, ["tune", *options])
    assert result.exit_code in {0, 3}, result.output
    line = json.loads(result.stdout.splitlines()[-1])
    first = line["trials"][0]
    (short,) = (each for each in first["result"]["classes"] if each["request_class"] == "short")
    assert first["settings"] == {}
    assert short["ttft_p95_s"] > 0
    assert line["server"]["start"]["max_num_batched_tokens"] == 2048
    assert time.monotonic() - began < 300
