"""`headrace doctor`: what holds a server up, and what to change; `headrace explain`: what a word means."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console

from headrace.cli.costs import CostType, LoadedCost, load_cost
from headrace.cli.doctor_twin import seen_of, tested_in_twin
from headrace.cli.quantity import Duration
from headrace.cli.sampling import Sampler, from_prometheus
from headrace.cli.watching import watch
from headrace.core.errors import BadInput
from headrace.core.measurement import Measurement
from headrace.diagnose.doctor import Diagnosis, diagnose
from headrace.diagnose.evidence import Evidence, merged
from headrace.diagnose.finding import Severity
from headrace.diagnose.observed import traffic_of
from headrace.diagnose.readers.files import is_measurement, read_file
from headrace.diagnose.readers.flags import read_command, serving_engine
from headrace.diagnose.readers.results import from_measurement
from headrace.diagnose.terms import explained
from headrace.diagnose.tested import Twin
from headrace.measure import record
from headrace.report.diagnosis import (
    diagnosis_json,
    explained_json,
    print_diagnosis,
    print_explained,
    print_terms,
    print_twin,
    twin_json,
)

EXIT_BY_SEVERITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.CRITICAL: 3}
"""2 is the house's for input that cannot be read."""


class Options(TypedDict):
    """What the command line says beside the inputs."""

    window: float
    prometheus: str | None
    since: float
    cost: str | None
    api_key: str | None
    details: bool
    watch: bool
    as_json: bool


@click.command(no_args_is_help=True, short_help="What holds a server up, and what to change.")
@click.argument("inputs", nargs=-1, metavar="[URL|FILE|'COMMAND'|-]...")
@click.option(
    "--for",
    "window",
    type=Duration(),
    default="30s",
    show_default=True,
    help="How long to look at a live server.",
)
@click.option("--prometheus", metavar="URL", help="Read a Prometheus server instead of a live one.")
@click.option(
    "--since", type=Duration(), default="6h", show_default=True, help="How far back, with --prometheus."
)
@click.option(
    "--cost",
    type=CostType(),
    metavar="NAME|FILE.json",
    help="Try the advice in the twin before giving it: the server's model and GPU, such as "
    "llama-3.1-8b/h100, or a file of `headrace calibrate`.",
)
@click.option("--api-key", envvar="HEADRACE_API_KEY", show_envvar=True, help="Sent as bearer token.")
@click.option(
    "--details", is_flag=True, help="Numbers and their places, prices, how to verify, other causes."
)
@click.option("--watch", is_flag=True, help="Follow a live server: say what comes and goes, until Ctrl-C.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object (with --watch one a line, with its time)."
)
def doctor(inputs: tuple[str, ...], **options: Unpack[Options]) -> None:
    """Find the bottleneck, from whatever there is: a live server, its log, its metrics, its flags.

    Inputs are told apart by what is in them, and may be given together: an address, a log of vLLM,
    SGLang or llama.cpp (any size, .gz too), one or more /metrics pages in order of time, a manifest or
    `ps` output, a command in quotes, a record of `headrace bench`, a result of `vllm bench serve`,
    or what somebody wrote of an incident. - is standard input.

    A server on this machine is also looked at from outside: who takes its cores, whether it was stopped.
    One that does not answer yet is waited for where its log is given beside it.

    Exit code: 0 nothing that needs a change, 1 warnings, 3 critical, 2 the input cannot be read.

    \b
    Examples:
      headrace doctor localhost:8000
      headrace doctor localhost:8000 server.log --for 60s
      headrace doctor vllm.log --details
      headrace doctor before.txt after.txt 'vllm serve M --max-num-seqs 64'
      kubectl logs POD | headrace doctor -
      ps -ef | headrace doctor - server.log.gz --json
      headrace doctor --prometheus http://prometheus:9090 --since 6h
      headrace doctor localhost:8000 --for 2m --cost llama-3.1-8b/h100
    """
    if not inputs and options["prometheus"] is None:
        raise BadInput("nothing to look at", "give an address, a file, or --prometheus URL")
    if options["watch"]:
        _watch(inputs, options)
        return
    cost = None if options["cost"] is None else load_cost(options["cost"])
    diagnosis, twin = diagnose(_read(inputs, options)), None
    if cost is not None:
        diagnosis, twin = _tried(diagnosis, inputs, cost)
    _show(diagnosis, options, twin)
    raise SystemExit(EXIT_BY_SEVERITY[diagnosis.severity])


def _tried(diagnosis: Diagnosis, inputs: tuple[str, ...], cost: LoadedCost) -> tuple[Diagnosis, Twin | None]:
    """What was found stands, also where no twin can be made of it."""
    try:
        with Console(stderr=True).status("trying the advice in the twin"):
            return tested_in_twin(diagnosis, seen_of(diagnosis.evidence, _record_among(inputs)), cost)
    except BadInput as error:
        click.echo(f"headrace: not tried in the twin: {error}", err=True)
        if error.hint:
            click.echo(f"  try: {error.hint}", err=True)
        return diagnosis, None


def _record_among(inputs: Iterable[str]) -> tuple[Path, Measurement] | None:
    """The first record of requests: the twin can have exactly those."""
    paths = (Path(text) for text in inputs)
    found = next((path for path in paths if _is_file(path) and is_measurement(path)), None)
    return None if found is None else (found, record.read(found))


def _show(diagnosis: Diagnosis, options: Options, twin: Twin | None) -> None:
    if options["as_json"]:
        click.echo(json.dumps(diagnosis_json(diagnosis) | {"twin": twin_json(twin)}))
        return
    console = Console(highlight=False)
    print_diagnosis(diagnosis, console, details=options["details"])
    if twin is not None:
        print_twin(twin, options["cost"] or "", console)
    elif options["cost"] is None and diagnosis.severity > Severity.NOTE and traffic_of(diagnosis.evidence):
        console.print("--cost MODEL/GPU tries the advice in the twin first.", style="dim")


def _read(inputs: Iterable[str], options: Options) -> Evidence:
    # A log goes on while the server is looked at, so it is read behind that. Merged, what is known beforehand
    # comes first and the live server last: it holds where they disagree.
    texts = sorted(inputs, key=_is_live, reverse=True)
    patient = len(texts) > 1
    read = [(_is_live(text), _read_one(text, options, patient=patient)) for text in texts]
    parts = [e for _, e in sorted(read, key=lambda part: (bool(part[1].readings), part[0]))]
    if options["prometheus"] is not None:
        parts.append(from_prometheus(options["prometheus"], options["since"], options["api_key"]))
    return merged(parts)


def _is_live(text: str) -> bool:
    return text != "-" and not _is_file(Path(text)) and " " not in text.strip() and _is_address(text)


def _read_one(text: str, options: Options, *, patient: bool = False) -> Evidence:
    if text == "-":
        return _from_stdin()
    path = Path(text)
    if _is_file(path):
        if path.is_dir():
            raise BadInput(f"{path} is a folder", f"the files in it that are of one server: {path}/*.log")
        with Console(stderr=True).status(f"reading {path.name!r}"):
            if is_measurement(path):
                return from_measurement(record.read(path), path.name)
            return read_file(path)
    if " " in text.strip():
        return _from_command(text)
    if _is_address(text):
        return _sampled(text, options, patient=patient)
    raise BadInput(f"{text} is no file, and no address", "http://HOST:PORT, or a whole command in quotes")


def _is_file(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the system is no file
        return False


def _is_address(text: str) -> bool:
    return (
        "://" in text or ":" in text or (text.replace(".", "").replace("-", "").isalnum() and "." not in text)
    )


def _from_command(text: str) -> Evidence:
    if not serving_engine(text):
        raise BadInput(
            f"{text[:60]!r} starts no server we know", "vllm serve …, python -m sglang.launch_server …"
        )
    return read_command(text, "command")


def _from_stdin() -> Evidence:
    """Whatever it is, as if it were a file: `kubectl logs POD | headrace doctor -`."""
    if sys.stdin.isatty():
        raise BadInput("nothing comes on standard input", "kubectl logs POD | headrace doctor -")
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        return read_file(Path(file.name), "standard input")


def _sampled(url: str, options: Options, *, patient: bool) -> Evidence:
    """`patient`: one that does not answer is not refused, because something else tells why."""
    sampler = Sampler(url, options["window"], options["api_key"], patient)
    console = Console(stderr=True)
    with console.status(f"looking at {sampler.url}") as status:
        sampler.watch(
            options["window"], lambda left: status.update(f"looking at {sampler.url}, {left:.0f} s more")
        )
    return sampler.evidence()


def _watch(inputs: tuple[str, ...], options: Options) -> None:
    """A line for each finding that comes or goes."""
    addresses = [text for text in inputs if not _is_file(Path(text)) and " " not in text and text != "-"]
    if len(addresses) != 1:
        raise BadInput(
            f"--watch follows one live server, not {len(addresses)}", "headrace doctor URL --watch"
        )
    known = merged(_read_one(text, options) for text in inputs if text not in addresses)
    watch(Sampler(addresses[0], options["window"], options["api_key"]), known, as_json=options["as_json"])


# Terms may be flags: what is no option of ours is a term.
@click.command(
    short_help="What a flag, a metric or a claim means.", context_settings={"ignore_unknown_options": True}
)
@click.argument("term", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(term: tuple[str, ...], as_json: bool) -> None:
    """Say what TERM is, which budget it is of, what raising and lowering it do, and in which versions.

    A claim that circulates and is wrong is answered with what is true. Without TERM: what there is.

    \b
    Examples:
      headrace explain max_num_batched_tokens
      headrace explain --swap-space --json
      headrace explain does the KV cache fragment
    """
    console = Console(highlight=False)
    if not term:
        print_terms(console)
        return
    found = explained(" ".join(term))
    if as_json:
        click.echo(json.dumps(explained_json(found)))
    else:
        print_explained(found, console)
