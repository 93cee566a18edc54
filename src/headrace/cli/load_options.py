"""Options that say what load is sent: `bench` and `compare` share them."""

from pathlib import Path
from typing import Any

import click

from headrace.cli.quantity import Duration, token_range
from headrace.cli.wording import NONE, SERVERS
from headrace.core.objective import Objectives, parse_objectives
from headrace.net.client import DEFAULT_TIMEOUT_S
from headrace.workload.arrivals import Regularity
from headrace.workload.mixed import MixedWorkload

STANDARD = MixedWorkload()
KEPT, NEW = "kept", "new"
MOST_AT_ONCE, MOST_ALONE = 100_000, 1_000
"""More is a slip of the hand: no client has so many sockets, and nobody waits for so many one by one."""


class TokenRange(click.ParamType[tuple[int, int]]):
    """`30-90`, or `64` for always the same."""

    name = "tokens"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            fewest, most = value
            return int(fewest), int(most)
        try:
            return token_range(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Slo(click.ParamType[Objectives]):
    """`chat: p95 ttft < 500ms, p95 itl < 60ms`."""

    name = "slo"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Objectives:
        del param, ctx
        return parse_objectives(str(value))


def tokens_option(name: str, default: str, text: str) -> Any:
    return click.option(name, type=TokenRange(), metavar="N-M", default=default, show_default=True, help=text)


def file_option(name: str, metavar: str, text: str) -> Any:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar=metavar, help=text)


_OPTIONS = (
    click.option("--rate", type=float, metavar="R", help="Requests a second of one kind, instead."),
    click.option(
        "--arrivals",
        type=click.Choice([each.value for each in Regularity]),
        default=Regularity.POISSON.value,
        show_default=True,
        help="Gaps between them.",
    ),
    click.option(
        "--burstiness",
        type=float,
        default=1.0,
        show_default=True,
        help="Shape of gamma gaps, as in vLLM: 1 is Poisson, less comes in bursts.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, MOST_AT_ONCE),
        metavar="N",
        help="So many always in flight, instead: a closed loop, which asks a slow server less.",
    ),
    click.option("--requests", type=click.IntRange(1), metavar="N", help="Send so many at most."),
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Replay a trace, in any form that `headrace simulate` reads, instead.",
    ),
    click.option(
        "--from", "from_", type=Duration(), default="0s", metavar="TIME", help="Only what is due from then."
    ),
    click.option("--first", type=click.IntRange(1), metavar="N", help="Only its first N requests."),
    click.option("--scale", type=float, default=1.0, show_default=True, help="Times its rate."),
    click.option(
        "--length-scale",
        type=float,
        default=1.0,
        show_default=True,
        help="Times its lengths and what it shares: for a smaller model or machine.",
    ),
    click.option("--spread", is_flag=True, help="Spread requests that share one tick of its clock."),
    click.option(
        "--think",
        type=Duration(),
        metavar="DURATION",
        help="Turns of a session wait for the answer before them, then so long.  [default: as it says]",
    ),
    click.option("--longest-prompt", type=click.IntRange(1), metavar="N", help="Cut its prompts to N."),
    click.option("--longest-answer", type=click.IntRange(1), metavar="N", help="Cut its answers to N."),
    click.option("--short-rps", default=STANDARD.short_rps, show_default=True, help="Short chats a second."),
    click.option("--long-rps", default=STANDARD.long_rps, show_default=True, help="Long documents a second."),
    tokens_option("--short-prompt", "30-90", "Tokens of a chat."),
    tokens_option("--long-prompt", "3000-5000", "Tokens of a document."),
    tokens_option("--prompt-tokens", "100-300", "Tokens of a prompt, with --rate or --concurrency."),
    tokens_option("--output-tokens", "24-48", "Tokens of every answer."),
    click.option(
        "--duration",
        type=Duration(),
        default=f"{STANDARD.duration_s:g}s",
        show_default=True,
        help="Time in which requests are due, as 90s or 2m.",
    ),
    click.option(
        "--warm-up",
        type=Duration(),
        metavar="DURATION",
        help="What is due before counts in no figure.  [default: a tenth, 10s at most]",
    ),
    click.option(
        "--tokenizer",
        metavar="MODEL",
        default=SERVERS,
        show_default=True,
        help=f"Makes prompts of exactly so many tokens: `{SERVERS}` asks its /tokenize, a MODEL is as of "
        f"`headrace serve`, or a tokenizer.json; `{NONE}`: a word is about a token.",
    ),
    click.option("--seed", type=int, help="Same seed, same requests.  [default: a new one, which is shown]"),
    click.option(
        "--timeout",
        type=Duration(),
        default=f"{DEFAULT_TIMEOUT_S:g}s",
        show_default=True,
        help="Time for one request, so also for the last ones at the end.",
    ),
    click.option(
        "--connections",
        type=click.Choice([KEPT, NEW]),
        default=KEPT,
        show_default=True,
        help="From one request to the next, or a new one for each.",
    ),
    click.option("--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, help="Sent as bearer token."),
)


alone_option = click.option(
    "--alone",
    type=click.IntRange(0, MOST_ALONE),
    metavar="N",
    default=2,
    show_default=True,
    help="Requests of each kind or class sent one by one before: a TTFT without a queue.",
)
"""Of `bench`: `compare` looks at what differs, and that is how servers behave under load."""

slo_option = click.option(
    "--slo", type=Slo(), metavar="TEXT", help='As "chat: p95 ttft < 500ms, p95 itl < 60ms".'
)


def load_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


LOAD_SECTIONS = {
    "Mixed load (the default)": ("short_rps", "long_rps", "short_prompt", "long_prompt"),
    "Or one kind of request": ("rate", "arrivals", "burstiness", "concurrency", "prompt_tokens"),
    "Or a trace": (
        "trace",
        "from_",
        "first",
        "scale",
        "length_scale",
        "spread",
        "think",
        "longest_prompt",
        "longest_answer",
    ),
    "Any load": (
        *("output_tokens", "duration", "warm_up", "requests", "alone"),  # `compare` has no alone
        *("tokenizer", "seed", "timeout", "connections"),
    ),
}
