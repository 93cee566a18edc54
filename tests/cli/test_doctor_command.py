import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.sampling import Sampler
from headrace.cli.watching import Seen, changes, look
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.evidence import Evidence
from headrace.measure import record
from tests.cli.pages import pages
from tests.diagnose.samples import findings, incident, stats
from tests.measure.samples import measurement, timeline
from tests.net.serving import running, service


def doctor(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], input=given)


def log_of(folder: Path, *lines: str) -> str:
    (path := folder / "server.log").write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([stats(1, 5, 0, 20.0)] * 5, 0),
        ([stats(1, 5, 40, 99.0)] * 5, 1),
        (["ValueError: No available memory for the cache blocks."], 3),
    ],
)
def test_the_exit_code_says_how_bad_it_is(tmp_path: Path, lines: list[str], code: int) -> None:
    assert doctor(log_of(tmp_path, *lines)).exit_code == code


@pytest.mark.parametrize(
    "words", [["no-such-file.log"], ["localhost:1"], ["rm -rf x"], [], ["x.log", "--watch"]]
)
def test_what_cannot_be_read_is_exit_code_2(words: list[str]) -> None:
    assert doctor(*words).exit_code == 2


def test_a_finding_is_three_lines_and_more_on_demand(tmp_path: Path) -> None:
    path = log_of(tmp_path, *[stats(1, 5, 40, 99.0)] * 5)

    short, long = doctor(path).output, doctor(path, "--details").output

    assert "kv_capacity" in short
    assert "do: " in short
    assert "server.log:5" not in short
    assert "server.log:5" in long
    assert "verify: " in long
    assert max(map(len, short.splitlines())) <= 80


def test_json_holds_what_a_program_needs(tmp_path: Path) -> None:
    said = json.loads(doctor(log_of(tmp_path, *[stats(1, 5, 40, 99.0)] * 5), "--json").output)

    assert said["severity"] == "warning"
    assert said["findings"][0]["label"] == "kv_capacity"
    assert any(fact["where"] == "server.log:5" for fact in said["findings"][0]["evidence"])
    assert [q["question"] for q in said["questions"]][:2] == ["Computation or memory traffic?", "GPU or CPU?"]


def test_inputs_are_judged_together(tmp_path: Path) -> None:
    path = log_of(tmp_path, *[stats(1, 64, 40, 30.0)] * 5)

    alone = json.loads(doctor(path, "--json").output)
    both = json.loads(doctor(path, "vllm serve m/x --max-num-seqs 64", "--json").output)

    assert alone["findings"][0]["rule"] != "no_slot"
    assert both["findings"][0]["rule"] == "no_slot"


def test_flags_come_through_a_pipe() -> None:
    result = doctor("-", "--json", given="u 7 1 vllm serve meta/Llama-3-8B --tensor-parallel-size 8\n")

    assert json.loads(result.output)["findings"][0]["label"] == "bad_flags"


def test_a_measurement_of_ours_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record.write(measurement(timeline(0.5, "short", (0.1, 0.1))), path)

    assert doctor(str(path), "--json").exit_code == 0


@pytest.mark.slow
def test_a_live_server_is_sampled() -> None:
    with running(service()) as server:
        result = doctor(server.url, "--for", "2s", "--json")

    said = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0
    assert said["engine"] == "headrace"
    assert said["findings"] == []


PAGE = (
    'vllm:num_requests_running{{engine="0"}} 8\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
    'vllm:kv_cache_usage_perc{{engine="0"}} 0.99\nvllm:num_preemptions_total{{engine="0"}} {lost}\n'
)


@pytest.mark.slow
def test_a_server_that_leaves_while_it_is_looked_at_is_judged_by_what_was_seen() -> None:
    seen = [PAGE.format(waiting=9, lost=0), PAGE.format(waiting=30, lost=12), None]
    with pages({"/metrics": seen, "/version": ['{"version": "0.32.0"}']}) as url:
        result = doctor(url, "--for", "2s", "--json")

    said = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 1
    assert (said["engine_version"], said["findings"][0]["label"]) == ("0.32.0", "preemption_thrash")
    assert "not answered" in said["notes"][0]


@pytest.mark.slow
def test_a_server_that_opens_while_its_log_is_beside_it_is_a_cold_start(tmp_path: Path) -> None:
    log = log_of(tmp_path, "headrace: loading smollm2", "serving smollm2 at http://127.0.0.1:8000")
    seen = [None, None, PAGE.format(waiting=0, lost=0)]
    with pages({"/metrics": seen, "/version": ['{"version": "0.32.0"}']}) as url:
        with_log = doctor(url, log, "--for", "2s", "--json")
    with pages({"/metrics": seen, "/version": ['{"version": "0.32.0"}']}) as url:
        alone = doctor(url, "--for", "2s")

    said = json.loads(with_log.stdout.splitlines()[-1])
    assert said["findings"][0]["label"] == "cold_start_compile"
    assert said["engine"] == "vllm"  # the live server's own word counts, not what a log looks like
    assert alone.exit_code == 2


def test_a_page_that_is_no_metrics_is_exit_code_2() -> None:
    with pages({"/metrics": ["<html>"]}) as url:
        assert doctor(url, "--for", "1s").exit_code == 2


def test_prometheus_is_asked_for_a_range() -> None:
    series = {
        "metric": {"__name__": "vllm:num_requests_waiting", "pod": "a"},
        "values": [[60 * n, str(n)] for n in range(9)],
    }
    answer = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}})
    with pages({"/api/v1/query_range": [answer]}) as url:
        steady = json.loads(doctor("--prometheus", url, "--json").output)["questions"][2]["answer"]
        wrong = doctor("--prometheus", f"{url}/other")

    assert steady.startswith("steady")
    assert wrong.exit_code == 2


def test_watch_says_what_comes_and_what_goes() -> None:
    ill = diagnose(incident(metrics={"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 3}))
    now = {finding.rule: finding for finding in findings(ill.evidence)}

    assert "+ critical  other:engine_stall" in next(changes({}, now))
    assert ["no longer so" in line for line in changes(now, {})] == [True] * len(now) + [False]
    assert "nothing is wrong" in next(changes(None, {}))
    assert [*changes(now, now), *changes({}, {})] == []


def page(running: int, started_at: int = 1) -> str:
    rows = (
        ("vllm:num_requests_running", running),
        ("vllm:num_requests_waiting", 0),
        ("vllm:kv_cache_usage_perc", 0.1),
        ("process_start_time_seconds", started_at),
    )
    return "".join(f"{name} {value}\n" for name, value in rows)


def test_watch_tells_of_a_server_that_goes_away_and_comes_back_as_another() -> None:
    shown = [page(1), page(1), None, None, page(2, started_at=9), page(2, started_at=9)]
    with pages({"/metrics": shown, "/version": ['{"version": "0.32.0"}']}) as url:
        sampler, seen = Sampler(url, 1.0), Seen()
        said = [[*look(sampler, Evidence(), seen, as_json=False)] for _ in shown]
        assert sampler.evidence().series("vllm:num_requests_running") == (2.0, 2.0), "of the new one alone"

    told = [line.partition("  ")[2].strip() for lines in said for line in lines]
    assert [len(lines) for lines in said] == [0, 1, 1, 0, 1, 1]
    assert told[0] == told[3] == "nothing is wrong"
    assert told[1].startswith(f"! no answer from {url}")
    assert told[2].startswith("! answers again")


def test_watch_says_the_same_to_programs_a_line_each() -> None:
    with pages({"/metrics": [page(1), page(1), page(1), None], "/version": ["{}"]}) as url:
        sampler, seen = Sampler(url, 1.0), Seen()
        _, first, same, gone = ([*look(sampler, Evidence(), seen, as_json=True)] for _ in range(4))
    assert json.loads(first[0])["format"] == "headrace.diagnosis"
    assert same == []
    assert json.loads(gone[0])["format"] == "headrace.silence"


def test_explain_says_a_term_in_words_and_for_programs() -> None:
    shown = CliRunner().invoke(main, ["explain", "max_num_seqs"])
    said = json.loads(CliRunner().invoke(main, ["explain", "--json", "--", "--swap-space"]).output)
    bare = json.loads(CliRunner().invoke(main, ["explain", "--swap-space", "--json"]).output)

    assert "budget: slots" in shown.output
    assert said["gone"]["flag"] == "swap-space"
    assert bare == said
    assert CliRunner().invoke(main, ["explain"]).exit_code == 0
    assert CliRunner().invoke(main, ["explain", "xyzzy"]).exit_code == 2


def test_a_text_of_no_server_is_no_healthy_server(tmp_path: Path) -> None:
    """A licence was diagnosed as `a server` with nothing to change, exit code 0."""
    text = tmp_path / "notes.txt"
    text.write_text("Apache License\nVersion 2.0, January 2004\n")
    told = CliRunner().invoke(main, ["doctor", str(text)])

    assert told.exit_code == 2
    assert "nothing in notes.txt is of a server that we know" in told.output


def test_where_there_is_no_gpu_none_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_text('headrace:build_info{version="0.1.0"} 1\nvllm:num_requests_running{engine="0"} 0\n')
    told = CliRunner().invoke(main, ["doctor", str(page), "headrace serve smollm2"])

    assert "GPU or CPU? the CPU: no GPU computes here" in told.output


def test_advice_is_tried_in_the_twin_before_it_is_given(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:00:{n / 4:09.6f},{400 + 40 * (n % 9)},120" for n in range(120)]
    trace, kept = tmp_path / "w.csv", tmp_path / "r.jsonl"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    cost = ("--cost", "llama-3.1-8b/a100-80gb")
    simulated = ("simulate", str(trace), *cost, "--max-num-seqs", "2", "--output", str(kept))
    assert CliRunner().invoke(main, simulated).exit_code == 0

    told = CliRunner().invoke(main, ["doctor", str(kept), *cost, "--json"])

    found = json.loads(told.output)
    assert found["twin"]["trusted"]
    assert max(found["twin"]["bill"], key=found["twin"]["bill"].get) == "slots"
    assert found["findings"][0]["change"].startswith("--max-num-seqs")
    assert "in the twin" in found["findings"][0]["change"]


def test_without_traffic_nothing_can_be_tried(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    page.write_text('vllm:num_requests_running{engine="0"} 4\n')

    told = CliRunner().invoke(main, ["doctor", str(page), "--cost", "llama-3.1-8b/h100"])

    assert told.exit_code == 0, "what was found stands"
    assert "not tried in the twin: too little traffic is known" in told.output


def test_a_cost_that_is_none_is_refused_before_anything_is_looked_at() -> None:
    told = CliRunner().invoke(main, ["doctor", "localhost:1", "--cost", "no-such-model/h100"])

    assert told.exit_code == 2
    assert "no-such-model" in told.output


@pytest.mark.parametrize(
    ("path", "said"),
    [("/metrics", "is it up, and is this its port"), ("", "is it up, and is this its port")],
)
def test_the_address_of_its_metrics_is_the_servers(path: str, said: str) -> None:
    down = doctor(f"localhost:1{path}")
    assert (down.exit_code, "localhost:1/metrics: " in down.stderr, said in down.stderr) == (2, True, True)
    with pages({"/metrics": [page(1)], "/version": ["{}"]}) as url:
        assert doctor(f"{url}{path}", "--for", "0.1s").exit_code == 0
        assert "keep /metrics elsewhere" in doctor(f"{url}/nowhere").stderr


def test_a_folder_is_answered_with_its_files(tmp_path: Path) -> None:
    assert f"{tmp_path}/*.log" in doctor(str(tmp_path)).stderr
