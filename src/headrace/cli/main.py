"""`headrace`: the commands, and the one place where errors become exit codes.

0  done     1  it went wrong     2  the input was wrong     130  interrupted
"""

import shutil
import signal
import sys
import textwrap
from typing import Any

import click

from headrace import __version__
from headrace.cli import doctor as diagnosing
from headrace.cli.bench import bench
from headrace.cli.bench_both import compare
from headrace.cli.calibrate import calibrate
from headrace.cli.plan import plan
from headrace.cli.record import record
from headrace.cli.serve import serve
from headrace.cli.simulate import simulate
from headrace.cli.tune import tune
from headrace.cli.workload import workload
from headrace.core.errors import BadInput, HeadraceError, ModelOutOfReach, ModelUnusable

INTERRUPTED = 130
MIN_COLUMNS = 40


class Headrace(click.Group):
    """Shows a `HeadraceError` as two lines instead of a traceback; Ctrl-C as nothing at all."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            click.echo(_wrapped(f"headrace: {error}"), err=True)
            if error.hint:
                click.echo(_wrapped(f"  try: {error.hint}"), err=True)
            ctx.exit(2 if _is_the_callers(error) else 1)
        except KeyboardInterrupt:
            # Pressed again on the way out, it would find click's own handler, whose exit code is 1.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ctx.exit(INTERRUPTED)


def _wrapped(line: str) -> str:
    """Between words on a terminal, which would break in the midst of one; as it is for a program."""
    if not sys.stderr.isatty():
        return line
    columns = max(MIN_COLUMNS, shutil.get_terminal_size().columns)
    return textwrap.fill(
        line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _is_the_callers(error: HeadraceError) -> bool:
    return isinstance(error, BadInput | ModelUnusable) and not isinstance(error, ModelOutOfReach)


@click.group(cls=Headrace, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headrace")
def main() -> None:
    """Serve, measure and tune LLM inference. Every wait has a name.

    \b
    First steps:
      headrace tune                    the main job, on a small built-in model
      headrace serve smollm2           an OpenAI-compatible server, from one file
      headrace bench localhost:8000    how a server behaves under mixed traffic
      headrace doctor vllm.log         what holds a server up, and what to change
      headrace plan llama-3.1-8b       will it fit, on which GPU, with which limits
    """


main.add_command(bench)
main.add_command(compare)
main.add_command(calibrate)
main.add_command(plan)
main.add_command(record)
main.add_command(serve)
main.add_command(simulate)
main.add_command(tune)
main.add_command(workload)
main.add_command(diagnosing.doctor)
main.add_command(diagnosing.explain)


if __name__ == "__main__":
    main()
