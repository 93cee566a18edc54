"""Every kind of load of `headrace bench`, its verdicts and exit codes, against servers on the loopback."""

import asyncio
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.core.measurement import Load
from headrace.measure import record
from tests.net.awkward import Exchange, answer_well, awkward_server
from tests.net.serving import running, service

ONE_KIND = (
    *("--prompt-tokens", "4-8", "--output-tokens", "3", "--duration", "0.6", "--seed", "1"),
    *("--warm-up", "0", "--alone", "0"),
)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def said(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


async def not_found(exchange: Exchange) -> None:
    await exchange.json("404 Not Found", {"error": {"message": "no such thing"}})


async def wrong_usage(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("a")
    await exchange.text("b", "stop")
    await exchange.usage(99)


@pytest.mark.slow
def test_an_open_loop_of_one_kind_keeps_a_record_and_a_spreadsheet(tmp_path: Path) -> None:
    path, table = tmp_path / "run.jsonl", tmp_path / "run.csv"
    with awkward_server(answer_well) as url:
        result = bench(url, "--rate", "100", *ONE_KIND, "--output", str(path), "--csv", str(table))

    assert result.exit_code in (0, 4), result.output
    run = record.read(path)
    assert run.load is Load.POISSON
    assert 30 < len(run.results) < 100
    assert all(each.asked_tokens == each.usage_tokens == each.token_events == 3 for each in run.timelines)
    assert run.client is not None
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["load", "all"]
    assert int(rows[0]["requests"]) == len(run.results)


@pytest.mark.slow
def test_a_closed_loop_never_has_more_in_flight_than_asked(tmp_path: Path) -> None:
    path, at_once = tmp_path / "run.jsonl", list[int]()
    now = [0]

    async def count(exchange: Exchange) -> None:
        now[0] += 1
        at_once.append(now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        await answer_well(exchange)

    with awkward_server(count) as url:
        result = bench(url, "--concurrency", "4", *ONE_KIND, "--output", str(path))

    assert result.exit_code in (0, 4), result.output
    assert max(at_once) == 4
    assert record.read(path).load is Load.CLOSED
    assert len(at_once) > 12


@pytest.mark.slow
def test_a_trace_is_replayed_with_its_lengths_and_its_shared_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 100, "input_length": 700, "output_length": 3, "hash_ids": [1, 3]},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = list[list[str]]()

    async def note(exchange: Exchange) -> None:
        prompts.append(exchange.body["messages"][0]["content"].split())
        await answer_well(exchange)

    with awkward_server(note) as url:
        result = bench(url, "--trace", str(trace), "--warm-up", "0", "--json")

    assert result.exit_code in (0, 4), result.output
    alone, prompts = prompts[:2], prompts[2:]
    assert [len(prompt) for prompt in prompts] == [600, 700]
    assert [len(prompt) for prompt in alone] == [188, 600]  # as long as what is each one's own
    assert all(each[:16] != prompt[:16] for each in alone for prompt in prompts)
    first, second = prompts
    assert first[:512] == second[:512]
    assert first[512:] != second[512:600]


@pytest.mark.slow
def test_an_slo_decides_the_exit_code() -> None:
    with awkward_server(answer_well) as url:
        met = bench(url, "--rate", "100", *ONE_KIND, "--slo", "p50 ttft < 30s", "--json")
        missed = bench(url, "--rate", "100", *ONE_KIND, "--slo", "p95 e2e < 1us")

    assert met.exit_code in (0, 4), met.output
    assert said(met)["slo"]["verdict"] == "met"
    assert missed.exit_code in (3, 4)
    assert "missed" in missed.stdout


@pytest.mark.slow
def test_refusals_for_good_end_a_run_early(tmp_path: Path) -> None:
    """A wrong name once sent the whole timetable into a server that knew it not."""
    path = tmp_path / "run.jsonl"
    with awkward_server(not_found) as url:
        result = bench(url, "--rate", "50", *ONE_KIND, "--duration", "60", "--output", str(path))

    assert result.exit_code == 1
    assert "none of the first 10 requests was taken: 404 Not Found" in " ".join(result.stderr.split())
    assert 10 <= len(record.read(path).results) < 40


@pytest.mark.slow
def test_a_server_that_is_not_there_ends_a_run_early() -> None:
    result = bench("127.0.0.1:1", "--model", "any", "--rate", "50", *ONE_KIND, "--duration", "60")

    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "none of the first 10 requests was taken: no connection: Connection refused" in said


@pytest.mark.slow
def test_a_usage_that_is_wrong_is_told_and_not_believed() -> None:
    with awkward_server(wrong_usage) as url:
        result = bench(url, "--rate", "50", *ONE_KIND, "--json")

    assert said(result)["usage_wrong"] == said(result)["short_answers"] != 0
    assert "usage is not what was sent" in " ".join(result.stdout.split())


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with awkward_server(answer_well) as url:
        result = bench(url, "--model", "typo")

    assert result.exit_code == 2
    assert "does not serve 'typo'" in result.stderr
    assert "it serves awkward" in result.stderr


@pytest.mark.slow
def test_a_search_for_the_capacity_shows_each_run_and_says_how_it_ended() -> None:
    """One place at a time, 20 ms each: 50 a second at most."""
    place = asyncio.Lock()

    async def one_at_a_time(exchange: Exchange) -> None:
        async with place:
            await asyncio.sleep(0.02)
        await answer_well(exchange)

    with awkward_server(one_at_a_time) as url:
        result = bench(
            *(url, "--find-capacity", "--slo", "p90 ttft < 150ms", "--rate", "10", "--duration", "2"),
            *("--prompt-tokens", "4-8", "--output-tokens", "2", "--seed", "3", "--json"),
        )

    assert result.exit_code in (0, 3), result.output
    found = said(result)
    assert len(found["probes"]) >= 2
    assert result.stderr.count("/s: ") == len(found["probes"])
    if found["found"] == "found":
        assert 10 <= found["met"] < 60


@pytest.mark.slow
def test_two_servers_are_compared_in_turns(tmp_path: Path) -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.2)
        await answer_well(exchange)

    with awkward_server(answer_well) as a, awkward_server(slow) as b:
        result = CliRunner().invoke(
            main,
            [
                *("compare", a, b, "--rate", "40", "--duration", "0.6", "--pairs", "3", "--seed", "1"),
                *("--prompt-tokens", "4-8", "--output-tokens", "2", "--output-dir", str(tmp_path / "kept")),
                *("--html", str(tmp_path / "page.html"), "--csv", str(tmp_path / "rows.csv"), "--json"),
            ],
        )

    assert result.exit_code in (0, 3, 4), result.output
    ttft = next(each for each in said(result)["differences"] if each["figure"] == "TTFT P50")
    assert ttft["ratio"] > 1
    assert ttft["verdict"] in ("worse", "inconclusive")  # as the machine lets it
    kept = sorted((tmp_path / "kept").iterdir())
    assert [path.name for path in kept] == [f"0{pair}-{side}.jsonl" for pair in (1, 2, 3) for side in "ab"]
    assert [record.read(path).seed for path in kept] == [1, 1, 2, 2, 3, 3]
    assert said(result)["seeds"] == [[1, 1], [2, 2], [3, 3]]
    assert "pair 3 of 3, A: " in result.stderr
    assert "headrace compare" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "rows.csv").read_text().count("\n") == 1 + len(said(result)["differences"])


@pytest.mark.slow
def test_a_server_that_dies_in_the_third_pair_leaves_what_two_pairs_say() -> None:
    slices = [0]

    async def until_the_third(exchange: Exchange) -> None:
        slices.append(exchange.body["max_tokens"])
        if len(slices) > 2 * 20:
            await not_found(exchange)
        else:
            await answer_well(exchange)

    load = ("--rate", "40", "--requests", "20", "--duration", "2", "--pairs", "3", "--seed", "1")
    rest = ("--prompt-tokens", "4-8", "--output-tokens", "2", "--tokenizer", "none")
    with awkward_server(answer_well) as a, awkward_server(until_the_third) as b:
        result = CliRunner().invoke(main, ["compare", a, b, *load, *rest])

    assert result.exit_code == 1, result.output
    assert "TOO FEW PAIRS: 2 give ratios" in result.stdout
    assert "answered nothing in slice 3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--rate", "1", "--concurrency", "2"), "--rate and --concurrency are two kinds of load"),
        (("--rate", "0"), "--rate is 0"),
        (("--rate", "1e9"), "are the limit"),
        (("--rate", "1", "--warm-up", "60"), "leaves nothing"),
        (("--find-capacity",), "--find-capacity needs --slo"),
        (("--slo", "fast"), "is no objective"),
        (("--trace", "/no/such/file"), "No such file"),
        (("--rate", "1", "--prompt-tokens", "1"), "at least 3"),
        (("--csv", "/no/such/folder/run.csv"), "there is no folder"),
        (("--concurrency", "0"), "is not in the range"),
        (("--rate", "9", "--prompt-tokens", "1000000"), "tokens in all are the limit"),
        (("--find-capacity", "--slo", "ttft 1s", "--csv", "run.csv"), "--csv is of one run"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_sent(arguments: tuple[str, ...], complaint: str) -> None:
    result = bench("127.0.0.1:1", *arguments)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr


def a_trace(folder: Path) -> Path:
    """Twelve requests; a beginning of 64 tokens is everybody's; one is shorter than any prompt can be."""
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": 20 * n, "input_length": 64 + 9 * n, "output_length": 3, "hash_ids": [0, n + 1]}
        for n in range(1, 8)
    ]
    rows.append({"timestamp": 200, "input_length": 2, "output_length": 3, "hash_ids": [0]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_prompts_have_exactly_the_tokens_of_a_trace_by_the_servers_own_count(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    with running(service()) as server:
        url = f"127.0.0.1:{server.port}"
        result = bench(url, "--trace", str(a_trace(tmp_path)), "--seed", "1", "--output", str(kept), "--json")

    assert result.exit_code in (0, 4), result.output
    run = replace(record.read(kept), warm_up_s=0.0)
    wanted = [64 + 9 * n for n in range(1, 8)]
    assert [each.prompt_tokens for each in run.results[:7]] == wanted
    assert [each.asked_prompt_tokens for each in run.timelines[:7]] == wanted
    assert run.results[7].prompt_tokens > 2
    assert "1 prompt lengthened" in run.workload
    assert "prompts have exactly the tokens asked for" in " ".join(result.stdout.split())
    assert said(result)["prompts_exact"] > 0
    assert said(result)["prompts_counted_otherwise"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("load", [("--rate", "40"), ("--concurrency", "2"), ("--short-rps", "40")])
def test_loads_of_our_own_making_are_exact_as_well(load: tuple[str, ...], tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    lengths = (
        "--prompt-tokens",
        "50-70",
        "--short-prompt",
        "50-70",
        "--long-rps",
        "0",
        "--output-tokens",
        "3",
    )
    with running(service()) as server:
        rest = ("--duration", "0.6", "--seed", "1", "--alone", "1", "--output", str(kept))
        result = bench(f"127.0.0.1:{server.port}", *load, *lengths, *rest)

    assert result.exit_code in (0, 4), result.output
    run = record.read(kept)
    assert len(run.timelines) > 5
    assert all(50 <= each.prompt_tokens == each.asked_prompt_tokens <= 70 for each in run.timelines)
    assert all(50 <= each.prompt_tokens <= 70 for each in run.alone)


@pytest.mark.slow
def test_a_server_that_does_not_tokenize_is_sent_about_so_many_and_it_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    with awkward_server(answer_well) as url:
        result = bench(url, "--rate", "50", *ONE_KIND, "--output", str(kept))
        unasked = bench(url, "--rate", "50", *ONE_KIND, "--tokenizer", "none")

    assert "prompts have about the tokens asked for" in " ".join(result.stderr.split())
    assert "404" in result.stderr
    assert "prompt lengths about as said" in record.read(kept).workload
    assert all(each.asked_prompt_tokens == 0 for each in record.read(kept).timelines)
    assert "tokenizer" not in unasked.stderr


@pytest.mark.slow
def test_what_a_server_says_is_no_markup(tmp_path: Path) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.json("404 Not Found", {"error": {"message": "[/b] no [red] model :smile:"}})

    with awkward_server(refuse, absent=("/metrics",)) as url:
        result = bench(url, "--rate", "50", *ONE_KIND)

    assert result.exit_code == 1, result.output
    told = " ".join(result.stderr.split())
    assert told.count("[/b] no [red] model :smile:") == 2, "of /tokenize, and why it gave up"


@pytest.mark.slow
def test_a_part_of_a_trace_begins_at_once(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    with awkward_server(answer_well) as url:
        part = ("--from", "0.09s", "--first", "3", "--tokenizer", "none", "--warm-up", "0")
        result = bench(url, "--trace", str(a_trace(tmp_path)), *part, "--output", str(kept))

    assert result.exit_code in (0, 4), result.output
    assert [round(each.due_at, 3) for each in record.read(kept).results] == [0.0, 0.02, 0.08]


@pytest.mark.slow
def test_turns_of_a_session_wait_for_answers_and_then_think_as_long_as_asked(tmp_path: Path) -> None:
    path, kept = tmp_path / "agents.jsonl", tmp_path / "run.jsonl"
    rows = [
        {"timestamp": 10 * n, "input_length": 9, "output_length": 2, "session_id": n % 2} for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with awkward_server(answer_well) as url:
        asked = ("--think", "0.1s", "--tokenizer", "none", "--warm-up", "0", "--output", str(kept))
        result = bench(url, "--trace", str(path), *asked)
        nobody = bench(url, "--trace", str(a_trace(tmp_path)), "--think", "1s")

    assert result.exit_code in (0, 4), result.output
    run = record.read(kept)
    assert run.load is Load.SESSIONS
    ended = {each.request_id: each.token_at[-1] for each in run.timelines}
    for number in range(2, 6):
        turn = next(each for each in run.timelines if each.request_id == f"trace-{number}")
        assert turn.due_at >= ended[f"trace-{number - 2}"] + 0.1
    assert nobody.exit_code == 2
    assert "which session it is of" in nobody.stderr
