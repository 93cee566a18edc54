"""What people give for an address, and what they are told to type instead."""

import pytest
from click.testing import CliRunner

from headrace.cli.main import main


@pytest.mark.parametrize(
    ("address", "complaint", "instead"),
    [
        ("smol.gguf", "is a model, and no address", "headrace serve smol.gguf"),
        ("traffic.jsonl", "is a file, and no address", "--trace traffic.jsonl"),
        ("/tmp", "is a model, and no address", "headrace serve /tmp"),
        ("no.such.host.invalid", "no host of the name", "no.such.host.invalid:8000"),
        ("smollm2.invalid", "no host of the name", "port 80, as none was given"),
    ],
)
def test_what_is_no_address_is_answered_with_the_command_that_takes_it(
    address: str, complaint: str, instead: str
) -> None:
    for command in ("bench", "compare"):
        result = CliRunner().invoke(main, [command, address, *([address] if command == "compare" else [])])

        assert result.exit_code in (1, 2), result.output
        assert complaint in result.stderr
        assert instead in result.stderr


def test_an_address_and_its_port_as_two_words_are_put_together() -> None:
    result = CliRunner().invoke(main, ["bench", "localhost", "8000"])

    assert result.exit_code == 2
    assert "a server's address is one word, as localhost:8000" in result.stderr


@pytest.mark.parametrize(("flag", "of_bench"), [("--goodput", "--slo"), ("--save-result", "--output")])
def test_compare_names_no_option_that_only_bench_has(flag: str, of_bench: str) -> None:
    """It took --slo as well, and did nothing with it."""
    bench = CliRunner().invoke(main, ["bench", "localhost:1", flag])
    compare = CliRunner().invoke(main, ["compare", "localhost:1", "localhost:2", flag])

    assert f"{of_bench} " in bench.stderr
    assert f"{of_bench} " not in compare.stderr
    assert (bench.exit_code, compare.exit_code) == (2, 2)


def test_compare_refuses_what_it_would_not_do() -> None:
    """It took --alone, and sent no request alone."""
    result = CliRunner().invoke(main, ["compare", "localhost:1", "localhost:2", "--alone", "3"])

    assert result.exit_code == 2
    assert "No such option '--alone'" in result.stderr.replace(": --alone", " '--alone'")
