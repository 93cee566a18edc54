"""Evidence made by hand, and logs as servers print them."""

from pathlib import Path

from headrace.diagnose import doctor
from headrace.diagnose.doctor import Diagnosis
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Finding, Label
from headrace.diagnose.likeness import Likely
from headrace.diagnose.readers.incident import read_incident
from headrace.diagnose.readers.log import read_log
from headrace.diagnose.readers.text import Source

STATS = (
    "(APIServer pid=1) INFO 11-29 18:{minute:02}:00 [loggers.py:335] Engine {engine:03}: Avg prompt "
    "throughput: "
    "{prompt} tokens/s, Avg generation throughput: {generated} tokens/s, Running: {running} reqs, Waiting: "
    "{waiting} reqs, GPU KV cache usage: {kv}%, Prefix cache hit rate: 0.0%"
)


def stats(
    minute: int,
    running: int,
    waiting: int,
    kv: float,
    *,
    prompt: float = 100.0,
    generated: float = 100.0,
    engine: int = 0,
) -> str:
    return STATS.format(
        minute=minute,
        running=running,
        waiting=waiting,
        kv=kv,
        prompt=prompt,
        generated=generated,
        engine=engine,
    )


def of_log(tmp_path: Path, *lines: str) -> Evidence:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_log(Source(path))


def incident(**parts: object) -> Evidence:
    return read_incident({"engine": "vllm", **parts}, "incident")


def diagnose(e: Evidence) -> Diagnosis:
    """By rules alone, whose tests are not of weights that are fitted anew now and then."""
    return doctor.diagnose(e, weigh=no_likeness)


def findings(e: Evidence) -> tuple[Finding, ...]:
    return diagnose(e).findings


def no_likeness(_: object) -> list[Likely]:
    """Every cause is as likely as any other."""
    others = (label for label in Label if label is not Label.UNDETERMINED)
    return [Likely(label, 0.1, (), 0) for label in (Label.UNDETERMINED, *others)]


def first(e: Evidence) -> Label | None:
    found = findings(e)
    return found[0].label if found else None


def labels(e: Evidence) -> set[Label]:
    return {label for finding in findings(e) for label in (finding.label, *finding.also)}
