"""`headrace tune` on twins made odd on purpose: each ends with what is so, within 80 columns and on its page.

Behaviour(overrides, number of the run) -> how many times as long its steps take | why it did not start
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from math import exp
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.cli import tuning
from headrace.cli.main import main
from headrace.cli.tuning_judge import Judged
from headrace.cli.tuning_targets import Tunable
from headrace.cli.tuning_twin import TwinServer
from headrace.core.cost import Pace
from headrace.core.ports import Overrides
from headrace.core.trial import Wanted
from headrace.tune.twin import Point
from headrace.workload.mixed import MixedWorkload
from headrace.workload.own_form import write_workload
from headrace.workload.trace import About, TraceRequest

CAP = "long_prefill_token_threshold"
NO_MEMORY = "the server ended before it was ready: torch.OutOfMemoryError: CUDA out of memory"
SLO = "short: p95 ttft < 1s; long: p95 ttft < 10s"

Behaviour = Callable[[Overrides, int], float | str]


@dataclass(frozen=True)
class OddJudge:
    """In place of `TwinJudge`: the search's own twin knows nothing of how this one behaves."""

    behaviour: Behaviour
    target: Tunable
    twin: TwinServer

    def __call__(self, wanted: Wanted, number: int) -> Judged:
        command = self.target.command(wanted.overrides)
        found = self.behaviour(wanted.overrides, number)
        if isinstance(found, str):
            return Judged(command, failed=found)
        measurement, seen = self.twin.run(Point(wanted.overrides, wanted.load, Pace(found, found)))
        return Judged(command, measurement, seen=seen)


@dataclass(frozen=True)
class Ended:
    code: int
    text: str
    page: str
    line: dict[str, Any]

    @property
    def verdict(self) -> str:
        return self.line["verdict"]

    @property
    def flat(self) -> str:
        return " ".join(self.text.split())

    @property
    def failed(self) -> list[str]:
        results = [trial["result"] for trial in self.line["trials"]]
        return [result["failed_because"] for result in results if "failed_because" in result]


class Tune(Protocol):
    """Chats among documents on a server that behaves so; a page is written, and JSON."""

    def __call__(self, behaviour: Behaviour, *options: str, slo: str = SLO, scale: float = 1.0) -> Ended: ...


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    def run(behaviour: Behaviour, *options: str, slo: str = SLO, scale: float = 1.0) -> Ended:
        monkeypatch.setattr(tuning, "TwinJudge", partial(OddJudge, behaviour))
        mix = MixedWorkload(short_rps=2.7 * scale, long_rps=0.66 * scale, duration_s=20.0, seed=1)
        asks = (
            TraceRequest(
                each.due_at, each.ask.num_prompt_words, each.ask.max_tokens, each.ask.request_class or ""
            )
            for each in mix.arrivals()
        )
        workload, page = tmp_path / "w.jsonl", tmp_path / "page.html"
        write_workload(workload, About("chats among documents"), asks)
        files = ["--workload", str(workload), "--journal", str(tmp_path / "journal"), "--html", str(page)]
        words = ["tune", "--target", "llama-3.1-8b/l4", "--slo", slo, *files, "--json", *options]
        result = CliRunner().invoke(main, words)
        assert result.stdout, result.output
        text, line = result.stdout.rstrip().rsplit("\n", 1)
        told = Ended(result.exit_code, text, page.read_text(), json.loads(line))
        lines = [each for each in text.splitlines() if not each.startswith("Report: ")]
        assert max(map(len, lines)) <= 80
        assert escape(told.line["headline"].split(".")[0][1:]) in told.page
        return told

    return run


@pytest.mark.slow
def test_a_lever_under_which_the_server_crashes_is_soon_left_alone_and_never_advised(tune: Tune) -> None:
    ended = tune(lambda overrides, _: NO_MEMORY if CAP in overrides else 1.0)
    assert ended.code == 0
    assert 1 <= len(ended.failed) <= 3
    assert "gave no result: the server ended before it was ready" in ended.flat
    assert "--long-prefill-token-threshold" not in ended.text


@pytest.mark.slow
def test_a_server_that_starts_under_its_own_settings_alone_keeps_them(tune: Tune) -> None:
    ended = tune(lambda overrides, _: NO_MEMORY if overrides else 1.0)
    assert (ended.code, ended.verdict) == (0, "nothing_better")
    assert ended.text.lstrip().startswith("NOTHING BETTER: keep the settings as they are")
    assert "which misses its limit" in ended.flat
    assert "under other settings gave a result: the server ended before it was ready" in ended.flat
    assert "so this load takes 2 servers" in ended.flat
    assert "Command line, unchanged: vllm serve MODEL" in ended.flat


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_a_noisy_server_is_promised_no_more_than_its_noise_allows(tune: Tune, noise: float) -> None:
    def noisy(_overrides: Overrides, number: int) -> float:
        return exp(float(np.random.default_rng(number).normal(0.0, noise)))

    ended = tune(noisy)
    assert ended.verdict in {"improved", "nothing_better", "inconclusive"}
    assert ended.verdict != "improved" or ended.line["gain"]["ratio_at_most"] <= 0.95
    assert "drifted" not in ended.flat


@pytest.mark.slow
def test_a_server_that_becomes_slower_all_the_time_is_said_to_drift(tune: Tune) -> None:
    ended = tune(lambda _, number: 1.2 ** (number - 1))
    assert ended.verdict == "drifted" or ended.line["gain"]["ratio_at_most"] <= 0.95
    assert "drifted" in ended.flat or ended.text.lstrip().startswith("DRIFTED")
    assert ended.code == (5 if ended.verdict == "drifted" else 0)


@pytest.mark.slow
def test_a_limit_below_what_an_idle_server_takes_asks_for_a_faster_machine(tune: Tune) -> None:
    ended = tune(lambda _, _number: 1.0, slo="long: p95 ttft < 300ms")
    assert (ended.code, ended.verdict) == (4, "unreachable")
    assert ended.text.lstrip().startswith(
        "OUT OF REACH: no setting meets the objectives. Long: p95 ttft came"
    )
    assert "in the twin even an idle server comes to" in ended.flat
    assert "a faster machine or a smaller model, by as much" in ended.flat
    assert "Command line, unchanged: vllm serve MODEL" in ended.flat


@pytest.mark.slow
def test_more_load_than_one_server_carries_asks_for_so_many_of_them(tune: Tune) -> None:
    ended = tune(lambda _, _number: 1.0, "--aim", "latency", scale=4.0)
    assert (ended.code, ended.verdict) == (4, "unreachable")
    assert "in the twin one server meets it at" in ended.flat
    assert "more replicas (" in ended.flat
