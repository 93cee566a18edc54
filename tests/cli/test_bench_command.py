import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner, Result

from headrace.cli.bench import EXIT_INVALID
from headrace.cli.bench import bench as bench_command
from headrace.cli.main import main
from headrace.cli.measuring import Target, measure
from headrace.cli.vllm_bench_flags import INSTEAD
from headrace.core.errors import TargetFailed
from headrace.measure import record
from headrace.net.client import served_models
from headrace.workload.mixed import MixedWorkload
from tests.net.awkward import Exchange, answer_well, awkward_server
from tests.net.serving import MODEL, running, service

QUICK = (
    *("--short-rps", "60", "--long-rps", "10", "--duration", "0.3", "--seed", "1", "--timeout", "10"),
    *("--warm-up", "0", "--alone", "0"),
    *("--short-prompt", "4-8", "--long-prompt", "30-60", "--output-tokens", "3"),
)


BELIEVED_OR_NOT = (0, EXIT_INVALID)
"""On a busy machine a client that is late says so, with answers that take a millisecond."""


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


async def refuse(exchange: Exchange) -> None:
    await exchange.json("429 Too Many Requests", {"error": {"message": "slow down"}})


@pytest.mark.slow
def test_bench_prints_tables_keeps_a_record_and_ends_with_json(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with awkward_server(answer_well) as url:
        result = bench(url, *QUICK, "--output", str(path), "--json")

    assert result.exit_code in BELIEVED_OR_NOT, result.output
    assert "TTFT" in result.stdout
    said = json.loads(result.stdout.splitlines()[-1])
    run = record.read(path)
    assert said["classes"]["all"]["requests"] == len(run.results) > 5
    assert said["classes"]["all"]["failed"] == 0
    assert said["seed"] == run.seed == 1
    assert {len(timeline.token_at) for timeline in run.timelines} == {3}
    assert (run.model, run.target, run.versions["server"]) == ("awkward", url, "1.2.3")


@pytest.mark.slow
def test_the_same_seed_sends_the_same_and_no_seed_something_new() -> None:
    sent = list[list[str]]()

    async def note(exchange: Exchange) -> None:
        sent[-1].append(exchange.body["messages"][0]["content"])
        await answer_well(exchange)

    without_seed = [word for word in QUICK if word not in ("--seed", "1")]
    with awkward_server(note) as url:
        for arguments in (QUICK, QUICK, without_seed):
            sent.append([])
            assert bench(url, *arguments).exit_code in BELIEVED_OR_NOT

    first, again, other = (sorted(prompts) for prompts in sent)
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.slow
def test_the_load_that_arrives_is_the_load_that_was_configured() -> None:
    """Seen from the server: the same requests, as far apart as the timetable says."""
    workload = MixedWorkload(
        short_rps=100, long_rps=20, duration_s=0.5, long_prompt_tokens=(20, 40), short_output_tokens=(1, 1)
    )
    arrived_at = dict[str, float]()

    async def note(exchange: Exchange) -> None:
        arrived_at[exchange.body["messages"][0]["content"]] = time.monotonic()
        await answer_well(exchange)

    before = time.monotonic()
    with awkward_server(note) as url:
        measurement = measure(Target(url, "awkward"), workload)

    due_at = {arrival.ask.prompt: arrival.due_at for arrival in workload.arrivals()}
    assert set(arrived_at) == set(due_at)
    assert len(measurement.timelines) == len(due_at)
    started_at = [arrived_at[prompt] - due_at[prompt] for prompt in due_at]
    assert min(started_at) >= before
    assert median(started_at) - min(started_at) < 0.1


def test_when_every_request_failed_the_exit_code_is_1_and_the_reason_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with awkward_server(refuse) as url:
        result = bench(url, *QUICK, "--output", str(path))

    assert result.exit_code == 1
    assert "refused: 429 Too Many Requests: slow down" in result.stdout
    assert len(record.read(path).failures) > 5


@pytest.mark.slow
def test_a_server_that_stalls_is_in_every_latency_in_full(tmp_path: Path) -> None:
    """Also in those of the requests that were due while it stalled: no coordinated omission."""
    path, stall_s = tmp_path / "run.jsonl", 0.2
    stalled = list[asyncio.Task[None]]()

    async def stall_from_the_first(exchange: Exchange) -> None:
        if not stalled:
            stalled.append(asyncio.create_task(asyncio.sleep(stall_s)))
        await asyncio.shield(stalled[0])
        await answer_well(exchange)

    with awkward_server(stall_from_the_first) as url:
        assert bench(url, *QUICK, "--output", str(path)).exit_code in BELIEVED_OR_NOT

    timelines = record.read(path).timelines
    end_of_stall_at = timelines[0].sent_at + stall_s
    during = [timeline for timeline in timelines if timeline.due_at < end_of_stall_at]
    assert len(during) > 5
    assert all(timeline.ttft_s >= end_of_stall_at - timeline.due_at for timeline in during)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("ftp://h",), "only http and https"),
        (("localhost:port",), "no address of a server"),
        (("h:1", "--short-rps", "-1"), "short_rps is -1.0"),
        (("h:1", "--short-rps", "nan"), "short_rps is nan"),
        (("h:1", "--duration", "0"), "nothing would be sent"),
        (("h:1", "--timeout", "0"), "--timeout is 0"),
        (("h:1", "--short-prompt", "a-b"), "'a-b' is neither a number of tokens"),
        (("h:1", "--short-prompt", "90-30"), "90 to 30"),
        (("h:1", "--output", "/no/such/folder/run.jsonl"), "there is no folder /no/such/folder"),
        (("h:1", "--duration", "soon"), "'soon' is no duration"),
        (("h:1", "--request-rate", "4"), "--rate R"),
        (("--base_url", "http://h:1"), "without a flag: headrace bench HOST:PORT"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_sent(arguments: tuple[str, ...], complaint: str) -> None:
    result = bench(*arguments)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("flag", INSTEAD)
def test_what_is_named_instead_of_a_flag_of_vllm_bench_is_an_option(flag: str) -> None:
    ours = {name for each in bench_command.params for name in each.opts}

    assert flag not in ours
    assert set(re.findall(r"--[a-z-]+", INSTEAD[flag])) <= ours


def test_without_a_port_it_says_which_was_taken() -> None:
    with pytest.raises(TargetFailed) as failed:
        asyncio.run(served_models("http://127.0.0.254"))

    assert failed.value.hint.startswith("that is port 80, as none was given")


def test_a_tokenizer_json_that_is_not_there_is_refused_before_anything_is_sent() -> None:
    with awkward_server(answer_well) as url:
        result = bench(url, "--tokenizer", "no/tokenizer.json")

    assert result.exit_code == 2
    assert "no/tokenizer.json is not there" in result.stderr


def test_without_a_server_it_says_so_and_ends_with_1() -> None:
    result = bench("127.0.0.1:1")

    assert result.exit_code == 1
    assert "Connection refused" in result.stderr
    assert "try: is a server running there?" in result.stderr


@pytest.mark.slow
def test_ctrl_c_shows_and_keeps_what_was_measured_until_then(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    pids = list[int]()

    async def interrupt_at_the_third(exchange: Exchange) -> None:
        count[0] += 1
        if count[0] == 3:
            os.kill(pids[0], signal.SIGINT)
        await answer_well(exchange)

    count = [0]
    with awkward_server(interrupt_at_the_third) as url:
        command = [sys.executable, "-m", "headrace", "bench", url, *QUICK, "--duration", "60"]
        with subprocess.Popen(
            [*command, "--output", str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            pids.append(process.pid)
            stdout, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "TTFT" in stdout
    assert 3 <= len(record.read(path).results) < 100


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["/tokenize", "/metrics", "/v1/chat/completions"])
def test_ctrl_c_ends_it_in_every_phase_although_the_server_has_hung(phase: str) -> None:
    pids = list[int]()

    async def hang(exchange: Exchange) -> None:
        if exchange.path == phase:
            if not interrupted:
                interrupted.append(phase)
                os.kill(pids[0], signal.SIGINT)
            await asyncio.sleep(60)
        await exchange.json("404 Not Found", {})

    interrupted = list[str]()
    code, stderr = _end_of_a_bench_that(hang, pids, *(("--alone", "2") if "chat" in phase else ()))

    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert "never retrieved" not in stderr


@pytest.mark.slow
def test_ctrl_c_pressed_again_and_again_ends_it_as_one_does() -> None:
    """The second came while the first was being obeyed: click took it, and the exit code was 1."""
    pids = list[int]()

    async def hang(exchange: Exchange) -> None:
        if exchange.path == "/tokenize":  # up to 16 of these at once
            os.kill(pids[0], signal.SIGINT)
            await asyncio.sleep(60)
        await exchange.json("404 Not Found", {})

    code, stderr = _end_of_a_bench_that(hang, pids)

    assert code == 130, stderr


def _end_of_a_bench_that(
    server_does: Callable[[Exchange], Awaitable[None]], pids: list[int], *options: str
) -> tuple[int, str]:
    """Exit code and stderr; `pids` has the process while it runs."""
    with awkward_server(server_does, absent=()) as url:
        load = ("--duration", "60", "--rate", "1", *(options or ("--alone", "0")))
        command = [sys.executable, "-m", "headrace", "bench", url, *load]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            pids.append(process.pid)
            _, stderr = process.communicate(timeout=30)
    return process.returncode, stderr


@pytest.mark.slow
def test_our_own_server_tells_where_the_time_of_the_slow_requests_went() -> None:
    with running(service()) as server:
        result = bench(server.url, *QUICK, "--json")

    assert result.exit_code in BELIEVED_OR_NOT, result.output
    assert "Where the slow short requests' TTFT went" in result.stdout
    said = json.loads(result.stdout.splitlines()[-1])
    assert (said["model"], said["failures"]) == (MODEL, {})
    assert said["classes"]["short"]["ttft_s"]["count"] == said["classes"]["short"]["requests"]
    for name in ("short", "long"):
        assert 0 < sum(said["slow_bill_s"][name].values()) <= said["classes"][name]["ttft_s"]["p99"] * 1.01


def test_a_goal_of_a_class_that_the_load_has_not_is_refused_before_anything_is_sent() -> None:
    """The run went to its end, and the verdict was an empty table."""
    with running(service()) as server:
        result = bench(server.url, *QUICK, "--slo", "chat: p95 ttft < 500ms")
    assert result.exit_code == 2
    assert "long, short" in result.output
