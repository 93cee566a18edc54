"""`headrace workload`: what a person sees, what a program gets, and files that are refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.workload.readers import read_trace

MOONCAKE = "".join(
    f'{{"timestamp": {number // 10 * 3000}, "input_length": {600 + number}, "output_length": 5, '
    f'"hash_ids": [0, {number + 1}]}}\n'
    for number in range(100)
)


def workload(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["workload", *map(str, arguments)])


def file_of(folder: Path, text: str = MOONCAKE) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return path


def made(folder: Path, *more: str) -> Path:
    path = folder / "made.jsonl"
    flags = (
        "--rate",
        "5",
        "--duration",
        "2m",
        "--prompt",
        "100-5000",
        "--output-tokens",
        "20",
        "--seed",
        "3",
    )
    result = workload("generate", *flags, *more, "--output", path)
    assert result.exit_code == 0, result.output
    return path


def test_describe_shows_what_decides_tuning_within_80_columns(tmp_path: Path) -> None:
    result = workload("describe", file_of(tmp_path))
    assert result.exit_code == 0, result.output
    for words in (
        "trace.jsonl: mooncake, 100 requests",
        "long prompts",
        "49.5% of the prefix blocks came before",
        "Requests over time",
        "to 1,024 █",
        "Only 10 different instants for 100 requests",
    ):
        assert words in result.stdout
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


def test_describe_gives_programs_one_object(tmp_path: Path) -> None:
    said = json.loads(workload("describe", made(tmp_path), "--long", "4000", "--json").stdout)
    assert said["format"] == "headrace"
    assert said["long_prompts"]["threshold_tokens"] == 4000
    assert 0.1 < said["long_prompts"]["share"] < 0.3
    assert said["reuse"] is None
    assert said["load"]["output_tokens_per_s"] == pytest.approx(20 * said["timing"]["rate"])


def test_generate_gives_the_same_bytes_to_a_file_and_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(workload("generate", "--example").stdout)
    piped = workload("generate", path, "--duration", "1m").stdout
    workload("generate", path, "--duration", "1m", "--output", tmp_path / "made.jsonl")
    assert (tmp_path / "made.jsonl").read_text() == piped
    assert "seed 7" in piped.splitlines()[0]
    other = workload("generate", path, "--duration", "1m", "--seed", "8").stdout
    assert other != piped


def test_slices_and_conversions_say_what_they_were_made_of(tmp_path: Path) -> None:
    source = made(tmp_path)
    part = tmp_path / "part.jsonl"
    result = workload("slice", source, "--from", "30s", "--until", "1m", "--output", part)
    assert result.exit_code == 0, result.output
    whole = read_trace(source).requests
    wanted = [r for r in whole if 30 <= r.due_at < 60]
    assert [r.due_at for r in read_trace(part).requests] == pytest.approx([r.due_at - 30 for r in wanted])
    assert read_trace(part).about.made_of.endswith("from 30 s, until 60 s")
    fast = tmp_path / "fast.jsonl"
    workload("convert", file_of(tmp_path), "--spread", "--scale", "2", "--output", fast)
    converted = read_trace(fast)
    assert converted.about.made_of == "mooncake trace.jsonl, 2 times the load, spread"
    assert converted.about.prefix_block_tokens == 512
    assert [r.due_at for r in converted.requests[:3]] == pytest.approx([0, 0.15, 0.3])


def test_sort_mends_what_is_out_of_order(tmp_path: Path) -> None:
    rows = MOONCAKE.splitlines()
    path = file_of(tmp_path, "\n".join(reversed(rows)))
    refused = workload("convert", path, "--output", tmp_path / "o.jsonl")
    assert refused.exit_code == 2
    assert "line 11: out of order" in refused.stderr
    assert "convert --sort" in refused.stderr
    assert workload("convert", path, "--sort", "--output", tmp_path / "o.jsonl").exit_code == 0
    assert len(read_trace(tmp_path / "o.jsonl").requests) == 100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("generate", "--rate", "4"), "--duration, --prompt, --output-tokens is missing"),
        (("generate", "x.yaml", "--rate", "4"), "a recipe and --rate are both given"),
        (("generate", "--seed", "4"), "neither a recipe nor flags are given"),
        (("generate", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("slice", "x.jsonl"), "which part?"),
        (("describe", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("convert", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    result = workload(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.output


def test_an_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    result = workload("convert", file_of(tmp_path), "--output", tmp_path / "no" / "where.jsonl")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


@pytest.mark.slow
def test_a_long_file_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.reading.SILENT_S", 0.0)
    path = made(tmp_path, "--scale", "120")
    result = workload("describe", path)
    assert "50,000 requests read, " in result.stderr


def test_a_workload_for_a_smaller_machine_has_the_same_shape(tmp_path: Path) -> None:
    source, target = tmp_path / "big.jsonl", tmp_path / "small.jsonl"
    source.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 80, "hash_ids": [1, 2]}\n')

    result = workload("convert", source, "--length-scale", "0.125", "--output", target)

    assert result.exit_code == 0, result.output
    (request,) = read_trace(target).requests
    assert (request.prompt_tokens, request.output_tokens) == (125, 10)
    assert (request.prefix_ids, request.prefix_block_tokens) == ((1, 2), 64)
    assert "0.125 times the lengths" in read_trace(target).about.made_of
