"""`headrace record LOG… --output FILE`: traffic as a workload that holds no text."""

import secrets
from pathlib import Path
from typing import TypedDict, Unpack

import click

from headrace.cli.reading import Progress
from headrace.core.errors import BadInput
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.report.units import many, seconds
from headrace.workload.forms import LOGS, TraceFormat
from headrace.workload.own_form import write_workload
from headrace.workload.prefix_names import BLOCK_TOKENS, SALT_BYTES, PrefixNames
from headrace.workload.recorded import Recorded, record_logs
from headrace.workload.trace import About

LEAST_SALT_BYTES = 16


class Options(TypedDict):
    output: Path
    log_format: str | None
    tokenizer: str | None
    prefix_block_tokens: int
    salt: Path | None


@click.command(no_args_is_help=True, short_help="Turn logs of traffic into a workload without text.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.jsonl",
    help="Where to write the workload.",
)
@click.option(
    "--format",
    "log_format",
    type=click.Choice([form.value for form in LOGS]),
    help="Form of the logs.  [default: told from how each begins]",
)
@click.option(
    "--tokenizer",
    metavar="MODEL",
    help="As of `headrace serve`: names prefixes by its tokens, and counts those that the log does not. "
    "Without it 4 bytes of text count as a token for the prefixes.",
)
@click.option(
    "--prefix-block-tokens",
    type=click.IntRange(1),
    default=BLOCK_TOKENS,
    show_default=True,
    metavar="TOKENS",
    help="What one prefix id stands for.",
)
@click.option(
    "--salt",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A secret of 16 bytes or more, so that several recordings name prefixes alike.  [default: one "
    "that is thrown away]",
)
def record(logs: tuple[Path, ...], **options: Unpack[Options]) -> None:
    """Turn traffic into a workload: when requests came, how long they were, what they shared. No text.

    LOG is a log of requests in JSON lines (gateways, proxies, OpenAI's objects; docs/workloads.md has
    the names of the fields), or vLLM's server log with --enable-log-requests. Several are put in order of
    time. Tenants and sessions become hashes; so do the beginnings of prompts, under a salt.

    \b
    Examples:
      headrace record requests.jsonl --output monday.jsonl
      headrace record gateway-*.jsonl --tokenizer smollm2 --output week.jsonl
      headrace record vllm.log --output today.jsonl
    """
    salt = _salt(options["salt"])
    encode = None
    if options["tokenizer"] is not None:
        encode = OpenVinoTokenizer(locate(options["tokenizer"])).encode
    names = PrefixNames(salt, options["prefix_block_tokens"], encode)
    form = options["log_format"]
    recorded = record_logs(logs, names, None if form is None else TraceFormat(form), Progress("read"))
    made_of = f"recorded from {len(logs)} log{'s' if len(logs) > 1 else ''}, prefixes by "
    made_of += (
        "tokens" if encode or recorded.trace_format is TraceFormat.VLLM_LOG else "text, 4 bytes a token"
    )
    about = About(made_of, prefix_block_tokens=options["prefix_block_tokens"])
    write_workload(options["output"], about, recorded.requests)
    _say(options["output"], recorded)


def _say(output: Path, recorded: Recorded) -> None:
    requests = recorded.requests
    click.echo(
        f"{output}: {many(len(requests), 'request')} over {seconds(requests[-1].due_at)}, no text", err=True
    )
    if recorded.left_out:
        click.echo(f"left out, as they have no answer: {many(recorded.left_out, 'line')}", err=True)


def _salt(path: Path | None) -> bytes:
    if path is None:
        return secrets.token_bytes(SALT_BYTES)
    try:
        salt = path.read_bytes()[: 2 * SALT_BYTES]
    except OSError as error:
        raise BadInput(f"--salt {path} cannot be read: {error.strerror}") from error
    if len(salt) < LEAST_SALT_BYTES:
        raise BadInput(
            f"--salt {path} holds {len(salt)} bytes; texts could be guessed below {LEAST_SALT_BYTES}",
            f"head -c {SALT_BYTES} /dev/urandom > salt",
        )
    return salt
