"""Flags of `vllm bench serve` that `headrace bench` and `compare` have under another name.

A test finds one that names no option of ours.
"""

import re

import click

from headrace.cli.sections import SectionedCommand

_ADDRESS = "give the server's address without a flag: headrace bench HOST:PORT"
_PROMPTS = "--prompt-tokens 100-300, with --rate or --concurrency"
_OUTPUTS = "--output-tokens 24-48"
_TRACE = "--trace FILE replays one; without it texts are made of random words"
_RECORD = "--output run.jsonl keeps the record"

INSTEAD = {
    "--base-url": _ADDRESS,
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--request-rate": "--rate R for one kind of request, or --short-rps and --long-rps for mixed load",
    "--num-prompts": "--requests N, or --duration",
    "--max-concurrency": "--concurrency N",
    "--goodput": '--slo "p95 ttft < 500ms, p95 itl < 60ms"',
    "--input-len": _PROMPTS,
    "--random-input-len": _PROMPTS,
    "--output-len": _OUTPUTS,
    "--random-output-len": _OUTPUTS,
    "--dataset-name": _TRACE,
    "--dataset-path": _TRACE,
    "--num-warmups": "--warm-up DURATION, and --alone N for requests one by one before",
    "--save-result": _RECORD,
    "--save-detailed": _RECORD,
    "--result-dir": _RECORD,
    "--result-filename": _RECORD,
}


_FLAG = re.compile(r"--[a-z-]+")
_EXTRA_PORT = re.compile(r"unexpected extra argument \((\d+)\)")


class LoadCommand(SectionedCommand):
    """A command that sends a load, and knows what those who come from vLLM's call it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = INSTEAD.get(error.option_name.replace("_", "-"), "")
            ours = {name for each in self.params for name in each.opts}
            if instead and set(_FLAG.findall(instead)) <= ours:
                message = f"{error.option_name} is a flag of `vllm bench serve`, and not here: {instead}"
                raise click.UsageError(message, ctx) from error
            raise
        except click.UsageError as error:
            if (port := _EXTRA_PORT.search(error.message)) is not None:
                message = f"{error.message}: a server's address is one word, as localhost:{port[1]}"
                raise click.UsageError(message, ctx) from error
            raise
