"""Every option that takes a number says what is wrong with one that is none, with exit code 2."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import pytest
from click.testing import CliRunner

from headrace.cli.load_options import Slo
from headrace.cli.main import main

NOWHERE = "127.0.0.1:1"
NO_NUMBERS = ("1e400", "nan", "inf", "", "0x10", "one")
NUMBERS = ("-0", "-1", "1e-400", "9" * 400)
"""Which some options may take."""
OF_A_TRACE = {"from_", "first", "scale", "length_scale", "think", "longest_prompt", "longest_answer"}
MADE = {"--rate": "2", "--duration": "10s", "--prompt": "10", "--output-tokens": "5"}


def command(names: str) -> click.Command:
    found: click.Command = main
    for name in names.split():
        found = cast("click.Group", found).commands[name]
    return found


def numeric(names: str) -> Iterator[click.Option]:
    for option in command(names).params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        is_text = isinstance(option.type, click.Choice | click.Path | Slo) or option.type is click.STRING
        if not is_text or option.opts[0] in ("--prompt", "--output-tokens"):
            yield option


def trace(folder: Path) -> str:
    path = folder / "trace.jsonl"
    row = {"input_length": 100, "output_length": 10}
    path.write_text(
        "".join(json.dumps({"timestamp": 1000 * n, "hash_ids": [n], **row}) + "\n" for n in range(5))
    )
    return str(path)


def arguments(names: str, option: click.Option, folder: Path) -> list[str]:
    """All that is needed beside the option."""
    path, out = trace(folder), str(folder / "out.jsonl")
    if names in ("bench", "compare"):
        needed = ["--trace", path] if option.name in OF_A_TRACE else []
        return [NOWHERE] * (1 + (names == "compare")) + needed
    if names == "workload generate":
        return [word for flag, said in MADE.items() if flag not in option.opts for word in (flag, said)] + [
            *("--output", out)
        ]
    if names == "workload slice":
        return [path, *([] if option.name == "first" else ["--first", "2"]), "--output", out]
    return [path, path] if names == "workload diff" else [path, *(["-o", out] if "convert" in names else [])]


COMMANDS = (
    *("bench", "compare", "workload describe", "workload diff", "workload slice"),
    *("workload convert", "workload generate"),
)
CASES = [(names, option) for names in COMMANDS for option in numeric(names)]


@pytest.mark.parametrize(("names", "option"), CASES, ids=lambda case: str(getattr(case, "name", case)))
def test_a_number_that_is_none_is_refused_in_words(names: str, option: click.Option, tmp_path: Path) -> None:
    for said in (*NO_NUMBERS, *NUMBERS):
        flags = [*names.split(), *arguments(names, option, tmp_path), option.opts[0], said]
        result = CliRunner().invoke(main, flags)

        assert result.exception is None or isinstance(result.exception, SystemExit), (flags, result.exception)
        if said in NO_NUMBERS:
            assert result.exit_code == 2, (flags, result.output)
        if result.exit_code == 2:
            assert result.stderr.strip(), flags


def test_a_slice_of_more_than_there_is_says_so(tmp_path: Path) -> None:
    flags = ["workload", "slice", trace(tmp_path), "--first", "10000", "-o", str(tmp_path / "out.jsonl")]
    result = CliRunner().invoke(main, flags)

    assert result.exit_code == 0
    assert "there were only 5 of the 10,000 asked for" in result.stderr


@pytest.mark.parametrize("said", ["9" * 400, "1e400", ".nan", "inf"])
def test_a_recipe_whose_number_is_none_is_refused_in_words(said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"workload: 1\nduration: 10s\nclasses:\n  chat:\n    rate: 1\n    prompt: {said}\n    output: 3\n"
    )
    result = CliRunner().invoke(main, ["workload", "generate", str(path), "-o", str(tmp_path / "w.jsonl")])

    assert result.exit_code == 2, result.output
    assert "class chat: " in result.stderr
    assert "is no number" in result.stderr
