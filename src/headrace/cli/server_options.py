"""Options of `headrace serve` that concern neither a step nor the memory."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headrace.cli.quantity import QUANTITY, SECONDS

Command = TypeVar("Command", bound=Callable[..., Any])


def refuse_empty(_: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A variable that is not set in a script, as a rule; an empty key would let everybody in."""
    if not all(values):
        raise click.BadParameter("it is empty; to have none, leave the flag out", param=param)
    return values


_FILE = click.Path(dir_okay=False)

_OPTIONS = (
    click.option(
        "--revision",
        metavar="NAME",
        help="Branch, tag or commit of a hub's repository.  [default: its main branch]",
    ),
    click.option(
        "--stream-interval",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="TOKENS",
        help="Tokens of a streamed event, but for the first and the last. A request may ask for more.",
    ),
    click.option("--uds", type=_FILE, metavar="PATH", help="Listen on a Unix socket instead."),
    click.option(
        "--api-key",
        multiple=True,
        callback=refuse_empty,
        metavar="KEY",
        help="Whoever names one of these is served; may be given several times.  "
        "[default: HEADRACE_API_KEY or VLLM_API_KEY; else no key is asked for]",
    ),
    click.option(
        "--config",
        type=_FILE,
        expose_value=False,
        metavar="FILE",
        help="YAML with flags as keys, as vLLM's. The command line has the last word.",
    ),
    click.option(
        "--tool-call-parser",
        type=click.Choice(("hermes",)),
        default="hermes",
        show_default=True,
        expose_value=False,
        help="In which format models write calls of tools.",
    ),
    click.option(
        "--enable-auto-tool-choice/--no-enable-auto-tool-choice",
        default=False,
        expose_value=False,
        help="Changes nothing: unlike vLLM's, tools need no flag.",
    ),
    click.option("--ssl-certfile", type=_FILE, metavar="FILE", help="Certificate (PEM): serve HTTPS."),
    click.option("--ssl-keyfile", type=_FILE, metavar="FILE", help="Its key, if in a file of its own."),
    click.option("--ssl-ca-certs", type=_FILE, metavar="FILE", help="Who may sign clients' certificates."),
    click.option(
        "--ssl-cert-reqs",
        type=click.IntRange(0, 2),
        default=0,
        show_default=True,
        help="Whether clients show a certificate: 0 no, 1 may, 2 must.",
    ),
    click.option(
        "--warmup/--no-warmup",
        default=True,
        help="Run a request before the first one comes, which would pay for it.  [default: on]",
    ),
    click.option(
        "--disable-log-stats",
        is_flag=True,
        help="No line about throughput and waits every 10 s. /metrics stays (vLLM's goes with it).  "
        "[default: off]",
    ),
    click.option(
        "--kv-cache-metrics/--no-kv-cache-metrics",
        default=False,
        help="Measure how long KV blocks live, lie idle and are reused (/metrics).  [default: off]",
    ),
    click.option(
        "--kv-cache-metrics-sample",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.01,
        show_default=True,
        metavar="SHARE",
        help="Of how many of the blocks.",
    ),
    click.option(
        "--max-num-queued-reqs",
        type=click.IntRange(0),
        metavar="N",
        help="Requests, running ones included, beyond which 503 is answered, with a Retry-After.  "
        "[default: no bound]",
    ),
    click.option(
        "--max-num-queued-tokens",
        type=QUANTITY,
        metavar="TOKENS",
        help="The same for the prompt tokens of requests that have no token yet.  [default: no bound]",
    ),
    click.option(
        "--queue-timeout",
        type=SECONDS,
        metavar="SECONDS",
        help="Longest wait for the first step; then 503. Not in vLLM.  [default: no bound]",
    ),
    click.option(
        "--request-timeout",
        type=SECONDS,
        metavar="SECONDS",
        help="Longest time from arrival to last token; then 504, or an error in the stream. Not in vLLM.  "
        "[default: no bound]",
    ),
)


def server_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
