"""`headrace doctor URL --watch`: what comes and what goes on a live server, line by line, until Ctrl-C.

Sampler -> a look -> Diagnosis -> changes since the look before -> lines
"""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from headrace.cli.sampling import Sampler
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Finding
from headrace.report.diagnosis import diagnosis_json

SILENCE = "headrace.silence"
"""Format of the JSON line of a server that does not answer."""
FEWEST_LOOKS = 2
"""One page counts from the server's start on: what it shows may be long over."""
_INDENT = " " * 13


@dataclass(slots=True)
class Seen:
    """What was told last."""

    findings: Mapping[str, Finding] | None = None
    """By label and rule; None before the first look."""
    silent_since: float | None = None


def watch(sampler: Sampler, known: Evidence, *, as_json: bool) -> None:
    """Ends by Ctrl-C, which is exit code 130. `known`: what other inputs say of the server."""
    seen = Seen()
    click.echo(f"following {sampler.url}, a look every {sampler.every_s:g} s; Ctrl-C ends it", err=True)
    while True:
        for line in look(sampler, known, seen, as_json=as_json):
            click.echo(line)
        time.sleep(sampler.every_s)


def look(sampler: Sampler, known: Evidence, seen: Seen, *, as_json: bool) -> Iterator[str]:
    """Once more at the server: what is to be told of it."""
    sampler.sample()
    told = _silence(sampler, seen, as_json) if sampler.silent else _changes(sampler, known, seen, as_json)
    yield from told


def _silence(sampler: Sampler, seen: Seen, as_json: bool) -> Iterator[str]:
    """Once, when it begins."""
    if seen.silent_since is None:
        seen.silent_since = time.monotonic()
        said = {"format": SILENCE, "version": 1, "at": _now(), "url": sampler.url, "why": sampler.silent}
        yield json.dumps(said) if as_json else _told("!", f"no answer from {sampler.url}: {sampler.silent}")


def _changes(sampler: Sampler, known: Evidence, seen: Seen, as_json: bool) -> Iterator[str]:
    if seen.silent_since is not None:
        if not as_json:
            yield _told("!", f"answers again, after {time.monotonic() - seen.silent_since:.0f} s")
        seen.silent_since = None
        sampler.forget()
        seen.findings = None
    if sampler.looks < FEWEST_LOOKS:
        return
    diagnosis = diagnose(known | sampler.evidence())
    now = {f"{finding.label} {finding.rule}": finding for finding in diagnosis.findings}
    before, seen.findings = seen.findings, now
    if as_json:
        if before is None or before.keys() != now.keys():
            yield json.dumps({"at": _now()} | diagnosis_json(diagnosis))
    else:
        yield from changes(before, now)


def changes(before: Mapping[str, Finding] | None, now: Mapping[str, Finding]) -> Iterator[str]:
    """`before`: None at the first look."""
    for name, finding in now.items():
        if name not in (before or {}):
            yield _told("+", f"{finding.severity.name.lower()}  {finding.label}: {finding.claim}")
            yield _wrapped(f"{_INDENT}do: {finding.advice.change}", _INDENT)
    for name, finding in (before or {}).items():
        if name not in now:
            yield _told("-", f"{finding.label}: no longer so")
    if not now and (before is None or before):
        yield _told(" ", "nothing is wrong")


def _told(sign: str, words: str) -> str:
    return _wrapped(f"{time.strftime('%H:%M:%S')}  {sign} {words}", _INDENT)


def _wrapped(line: str, indent: str) -> str:
    """Between words on a terminal; one line for whatever reads a file line by line."""
    if not sys.stdout.isatty():
        return line
    columns = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
