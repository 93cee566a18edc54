"""`headrace tune`: settings that meet a goal at the most throughput, found in the twin, proven for real."""

import json
import os
import shlex
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from rich.console import Console

from headrace.cli.calibrating import cpu_name
from headrace.cli.costs import load_cost
from headrace.cli.load_options import Slo
from headrace.cli.quantity import Duration
from headrace.cli.sections import SectionedCommand
from headrace.cli.stopping import terminated_like_interrupted
from headrace.cli.tune_manifest import patched, read_manifest, unified_diff
from headrace.cli.tuning import Asked
from headrace.cli.tuning import tune as tune_asked
from headrace.cli.tuning_journal import Journal, Question, default_folder, file_identity
from headrace.cli.tuning_plan import plan_text
from headrace.cli.tuning_survey import Time
from headrace.cli.tuning_targets import EmbeddedTarget, TwinTarget, target_named
from headrace.cli.tuning_telling import Teller
from headrace.cli.tuning_workload import FilePart, Wishes
from headrace.core.errors import BadInput
from headrace.core.goal import Aim
from headrace.core.objective import Objectives, joined
from headrace.core.trial import Verdict
from headrace.core.whole_file import replace_file
from headrace.executor.models import locate
from headrace.report.run_page import write_page
from headrace.report.tuning.as_json import tuning_json
from headrace.report.tuning.page import tuning_page
from headrace.report.tuning.text import tuning_text
from headrace.report.tuning.tuning import Tuning
from headrace.targets.flags import with_settings
from headrace.workload.mixed import MixedWorkload

EXIT_CODES = {Verdict.INCONCLUSIVE: 3, Verdict.UNREACHABLE: 4, Verdict.DRIFTED: 5}
EXIT_INTERRUPTED = 130
LEAST_BUDGET_S = 60.0
LAST_WORDS_S = 5.0
"""Of the budget, kept for stopping the last server and for the report."""
EMBEDDED_BUDGET_S, SERVER_BUDGET_S = 360.0, 1800.0
BUILT_IN = "smollm2"
DEFAULT_VLLM = Path(".vllm")


class Options(TypedDict):
    """What the command line says beside the words that name or start a server."""

    target: str | None
    vllm_folder: Path
    api_key: str | None
    slo: tuple[Objectives, ...]
    aim: str | None
    request_class: str | None
    price: float | None
    workload: Path | None
    first: int | None
    scale: float
    duration: float | None
    longest_prompt: int | None
    longest_answer: int | None
    short_rps: float | None
    long_rps: float | None
    seed: int
    budget: float | None
    max_trials: int | None
    journal: Path | None
    fresh: bool
    dry_run: bool
    ray_address: str | None
    manifest: Path | None
    out: Path | None
    html: Path | None
    as_json: bool


@click.command(
    cls=SectionedCommand,
    short_help="Settings that meet a latency goal, found in a twin and proven.",
    context_settings={"ignore_unknown_options": False},
    sections={
        "Target": ("target", "vllm_folder", "api_key"),
        "Goal": ("slo", "aim", "request_class", "price"),
        "Workload": (
            *("workload", "first", "scale", "duration", "longest_prompt", "longest_answer"),
            *("short_rps", "long_rps", "seed"),
        ),
        "Search": ("budget", "max_trials", "journal", "fresh", "dry_run", "ray_address"),
        "Results": ("html", "manifest", "out", "as_json"),
    },
)
@click.argument("words", nargs=-1, metavar="[MODEL | -- COMMAND...]")
@click.option(
    "--target",
    metavar="WHAT",
    help="embedded; vllm, of --vllm-folder; the address of a running server, which is measured and advised, "
    "never restarted; or a cost model, which is tuned in the twin alone.  [default: embedded]",
)
@click.option(
    "--vllm-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_VLLM,
    show_default=True,
    metavar="DIR",
    help="Where `make vllm` has installed one.",
)
@click.option("--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, help="Sent as bearer token.")
@click.option(
    "--slo",
    type=Slo(),
    multiple=True,
    metavar="TEXT",
    help='Limits, as "chat: p95 ttft < 500ms, p95 itl < 60ms; p95 ttft < 8s"; may be given several times. '
    "Without a class for all, but for a class that states the same percentile itself.",
)
@click.option(
    "--aim",
    type=click.Choice([aim.value for aim in Aim]),
    help="The most load at the limits; the least latency at the given load; the fewest servers for it.  "
    "[default: capacity with --slo, else latency]",
)
@click.option("--class", "request_class", metavar="NAME", help="Whose P95 TTFT counts, without --slo.")
@click.option("--price", type=click.FloatRange(0, min_open=True), help="Of one server, an hour.")
@click.option(
    "--workload",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to send, in any form that `headrace workload` reads.  [default: short chats among long "
    "documents, fitted to the machine]",
)
@click.option("--first", type=click.IntRange(2), metavar="N", help="Only its first N requests.")
@click.option(
    "--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Times its rate."
)
@click.option("--duration", type=Duration(), metavar="TIME", help="Of the file in each run.  [default: 3m]")
@click.option("--longest-prompt", type=click.IntRange(1), metavar="N", help="Cut its prompts to N.")
@click.option("--longest-answer", type=click.IntRange(1), metavar="N", help="Cut its answers to N.")
@click.option("--short-rps", type=float, help="Short chats a second.  [default: fitted to the machine]")
@click.option("--long-rps", type=float, help="Long documents a second.  [default: fitted to the machine]")
@click.option("--seed", default=0, show_default=True, help="Of the timetable and the words.")
@click.option(
    "--budget", type=Duration(), help="Time to spend, as 6m or 1h.  [default: 6m embedded, else 30m]"
)
@click.option("--max-trials", type=click.IntRange(min=1), help="Most runs, the baseline's included.")
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where runs are kept; the same question goes on from there.  [default: in your state folder]",
)
@click.option("--fresh", is_flag=True, help="Forget what was measured for this question.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and how long it would take.")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Simulate over this Ray cluster, as host:6379, auto or local.",
)
@click.option(
    "--manifest",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A compose or Kubernetes file that starts vLLM: shows how it changes.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the changed manifest.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="One page with charts, for a manager to read and an engineer to check.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on a line of its own.")
def tune(words: tuple[str, ...], **options: Unpack[Options]) -> None:
    """Find the settings that meet a latency goal at the most throughput.

    Measures the server as it is, calibrates a twin of it, searches hundreds of settings there, and
    proves the few that matter on the real server, in turns with the start. Recommends only what is
    beyond the noise. Stopped at any moment, the same command goes on where it was.

    Exit codes: 0 there is an answer, also "nothing better"; 1 the server gave no result, 2 wrong
    input, 3 inconclusive, 4 the goal is out of reach, 5 the server drifted, 130 interrupted.

    \b
    Examples:
      headrace tune
      headrace tune --slo "short: p95 ttft < 500ms" --budget 15m
      headrace tune --target vllm --workload monday.jsonl --scale 0.1
      headrace tune -- vllm serve meta-llama/Llama-3.1-8B --max-model-len 8k
      headrace tune --target localhost:8000 --slo "p95 ttft < 1s"
      headrace tune --target llama-3.1-8b/h100 --workload azure_conv.csv \\
          --slo "p95 ttft < 1s, p95 itl < 50ms"
      headrace tune --target vllm --manifest compose.yaml --out tuned.yaml
    """
    began = time.monotonic()
    _check(options)
    manifest = None if options["manifest"] is None else read_manifest(options["manifest"])
    with terminated_like_interrupted():  # so that it stops the server and reports too
        asked = _asked(words, options, began)
        if options["dry_run"]:
            click.echo(plan_text(asked, _folder(asked, options)))
            return
        with Journal.opened(_folder(asked, options), _question(asked), fresh=options["fresh"]) as journal:
            asked = _within(asked, journal.spent_s)
            try:
                tuning = tune_asked(asked, journal, Teller(Console(stderr=True), asked.time.ends_at))
            except KeyboardInterrupt:
                click.echo(f"interrupted; the same command goes on from {journal.folder}", err=True)
                raise
    tuning = replace(tuning, resume=_resume(tuning, asked.time.budget_s))
    _report(tuning, options, manifest)
    if code := _exit_code(tuning):
        raise SystemExit(code)


def _resume(tuning: Tuning, budget_s: float) -> str:
    """The command that goes on from here: the same, with more time where there was too little."""
    words = sys.argv[1:]
    if tuning.is_interrupted:
        return shlex.join(["headrace", *words])
    if tuning.conclusion is None or tuning.conclusion.verdict is not Verdict.INCONCLUSIVE:
        return ""
    end = words.index("--") if "--" in words else len(words)
    longer = with_settings(words[:end], {"budget": f"{2 * budget_s:.0f}s"})
    return shlex.join(["headrace", *longer, *words[end:]])


def _exit_code(tuning: Tuning) -> int:
    if tuning.is_interrupted:
        return EXIT_INTERRUPTED
    if tuning.conclusion is None or not tuning.server.restarts:
        return 0
    return EXIT_CODES.get(tuning.conclusion.verdict, 0)


def _check(options: Options) -> None:
    """Before a server is started to see what else would fit."""
    budget_s = options["budget"]
    if budget_s is not None and budget_s < LEAST_BUDGET_S:
        raise BadInput(
            f"a budget of {budget_s:g} s is too short: servers must start and requests be sent",
            f"give at least {LEAST_BUDGET_S:g}s; the default is 6m",
        )
    if options["workload"] is None:
        standard = MixedWorkload()
        MixedWorkload(
            short_rps=standard.short_rps if options["short_rps"] is None else options["short_rps"],
            long_rps=standard.long_rps if options["long_rps"] is None else options["long_rps"],
        )
    elif options["short_rps"] is not None or options["long_rps"] is not None:
        raise BadInput("--workload says what is sent; --short-rps and --long-rps are of the built-in mix")
    for name in ("out", "html"):
        kept = options[name]
        if kept is not None and not kept.absolute().parent.is_dir():
            raise BadInput(f"--{name} {kept}: there is no folder {kept.parent}")
    if options["ray_address"] is not None and find_spec("ray") is None:
        raise BadInput("Ray is not installed", "pip install 'headrace[ray]'")
    if options["out"] is not None and options["manifest"] is None:
        raise BadInput("--out is for the changed --manifest, and none is given")
    if options["aim"] in {Aim.CAPACITY, Aim.COST} and not options["slo"] and options["workload"] is None:
        raise BadInput(f"--aim {options['aim']} needs limits", '--slo "short: p95 ttft < 500ms"')


def _asked(words: tuple[str, ...], options: Options, began: float) -> Asked:
    target = target_named(options["target"], words, options["vllm_folder"])
    if target is None:
        model = words[0] if words else BUILT_IN
        target = EmbeddedTarget(model, locate(model))
    if isinstance(target, TwinTarget):
        load_cost(target.cost)  # a name that nobody knows is refused before anything is planned
    budget_s = options["budget"]
    if budget_s is None:
        budget_s = EMBEDDED_BUDGET_S if isinstance(target, EmbeddedTarget) else SERVER_BUDGET_S
    aim = options["aim"]
    return Asked(
        target=target,
        time=Time(began + budget_s - LAST_WORDS_S, budget_s, options["max_trials"]),
        workload=options["workload"],
        part=FilePart(
            first=options["first"],
            scale=options["scale"],
            duration_s=options["duration"],
            longest_prompt=options["longest_prompt"],
            longest_answer=options["longest_answer"],
        ),
        wishes=Wishes(options["short_rps"], options["long_rps"], options["seed"]),
        objectives=joined(each for said in options["slo"] for each in said),
        aim=None if aim is None else Aim(aim),
        request_class=options["request_class"],
        price_per_hour=options["price"],
        api_key=options["api_key"],
        ray_address=options["ray_address"],
    )


def _question(asked: Asked) -> Question:
    """All that the answer depends on, but for how long the search may take."""
    mix = f"short chats among long documents, {asked.wishes}"
    workload = mix if asked.workload is None else f"{file_identity(asked.workload)}, {asked.part}"
    slo = "; ".join(map(str, asked.objectives)) or "proposed"
    return {
        "target": asked.target.identity,
        "goal": f"{slo}, aim {asked.aim or 'as usual'}, class {asked.request_class or 'as usual'}",
        "workload": workload,
        "seed": str(asked.wishes.seed),
        "machine": f"{os.cpu_count()} x {cpu_name()}",
    }


def _folder(asked: Asked, options: Options) -> Path:
    return options["journal"] or default_folder(_question(asked))


def _within(asked: Asked, spent_s: float) -> Asked:
    """What was spent before counts: a budget is of the question, not of the process."""
    return replace(asked, time=replace(asked.time, ends_at=asked.time.ends_at - spent_s))


def _report(tuning: Tuning, options: Options, manifest: str | None) -> None:
    click.echo(f"\n{tuning_text(tuning)}")
    extra: dict[str, Any] = {}
    path = options["manifest"]
    changed = {} if tuning.conclusion is None else tuning.conclusion.recommended
    if manifest is not None and path is not None:
        after = patched(manifest, changed) if changed else manifest
        extra["manifest_diff"] = unified_diff(manifest, after, path)
        click.echo(f"\n{extra['manifest_diff'] or f'{path} stays as it is.'}".rstrip())
        if (out := options["out"]) is not None:
            replace_file(out, [after.encode()])
            click.echo(f"Written: {out}")
    if (html := options["html"]) is not None:
        write_page(html, tuning_page(tuning))
        click.echo(f"Report: {html}")
    if options["as_json"]:
        click.echo(f"\n{json.dumps(tuning_json(tuning) | extra)}")
