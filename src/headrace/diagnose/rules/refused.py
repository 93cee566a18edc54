"""Flags that end a start: refused by the server, or lacking in the version that is there."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Event, Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.flag_facts import NEWEST
from headrace.diagnose.missing_flags import (
    Missing,
    flags_alone,
    is_option_of,
    missing_flags,
    missing_variables,
    replaced,
    took_them,
    variables,
)
from headrace.diagnose.rules.contradictions import contradictions
from headrace.diagnose.rules.support import fact, said

_NO_START = frozenset({Label.STALL, Label.UNDETERMINED, Label.COLD_START})


def refused(e: Evidence) -> Iterator[Finding]:
    """Argparse ends the program on a flag it does not know, and on a value that a flag cannot have."""
    for event in e.of("unknown_flag")[-1:]:
        claim, change, grounds = _of_the_line(event, e)
        yield Finding(
            Label.BAD_FLAGS,
            claim,
            (said(event), *grounds),
            Advice(change, "the server starts"),
            Severity.CRITICAL,
            0.95,
            explains=_NO_START,
        )
    for event in () if contradictions(e) else e.of("config_error")[-1:]:
        yield Finding(
            Label.BAD_FLAGS,
            "Two settings contradict each other, so the server does not start",
            (said(event),),
            Advice("make them agree as the line says", "the server starts"),
            Severity.CRITICAL,
            0.9,
        )


def _of_the_line(event: Event, e: Evidence) -> tuple[str, str, tuple[Fact, ...]]:
    """(claim, change, why) of argparse's last line, or Python's on an argument."""
    if value := event.fields.get("argument"):
        return (
            f"The server refuses the value of {value.partition('/')[0]} and ends",
            "give it a value as the line says, or see --help of this version",
            (),
        )
    if keyword := event.fields.get("keyword"):
        written = [keyword]
    else:
        written = re.findall(r"(?<![\w-])--?([a-zA-Z][\w.-]*)", " ".join(event.fields.values()))
    if keyword and not is_option_of(keyword):
        return (
            f"Something does not know its argument {keyword}: versions are installed that do not fit",
            "install the versions that were released together (vllm and what it pins), or the image",
            (),
        )
    ours = e.engine in {"vllm", ""}
    found = [replaced(name, e.release) if ours else Missing(name, "", "leave it out") for name in written]
    return (
        f"The server refuses {', '.join(f'--{flag.name}' for flag in found) or 'a flag'} and ends",
        "; ".join(f"--{flag.name} -> {flag.instead}" for flag in found)
        or "leave it out, or see --help of this version",
        tuple(Fact(f"--{flag.name} {flag.why}") for flag in found if flag.why),
    )


def lacks_flags(e: Evidence) -> Iterator[Finding]:
    """Argparse ends the program on a flag that its version does not have. Where no version is told, and
    nothing of the server but its flags, they are held against the newest one.
    """
    if e.engine not in {"vllm", ""} or e.of("unknown_flag") or took_them(e):
        return
    if e.release is None and not flags_alone(e):
        return
    missing = tuple(flag for flag in missing_flags(e) if flags_alone(e) or not flag.is_stranger)
    if not missing:
        return
    certain = e.release is not None or not any(flag.ever for flag in missing)
    measured = any(r.numbers for r in e.under("client:"))  # with these flags, or with what a newer text lists
    yield Finding(
        Label.BAD_FLAGS,
        _lacking(e, missing),
        tuple(Fact(f"--{flag.name} {flag.why}", fact(e, flag.name).where) for flag in missing),
        Advice(
            "; ".join(f"--{flag.name} -> {flag.instead}" for flag in missing),
            "the server starts",
            verify="vllm serve --help of the version that will run it",
        ),
        Severity.CRITICAL if certain else Severity.WARNING,
        0.65 if measured else 0.8 if certain else 0.7,
        explains=frozenset({Label.UNDETERMINED}),
    )


def _lacking(e: Evidence, missing: tuple[Missing, ...]) -> str:
    named = ", ".join(f"--{flag.name}" for flag in missing)
    if e.release is not None:
        return f"vLLM {e.version} has no {named}"
    if not any(flag.ever for flag in missing):
        return f"vLLM has no {named}, and does not start with it"
    newest = ".".join(map(str, NEWEST[:2]))
    return f"vLLM {newest} has no {named}, and does not start with it; an older one may"


def unread_variables(e: Evidence) -> Iterator[Finding]:
    """A variable that the version does not read is passed over without a word, or ends the start where that
    was asked for. Beside a server at work it is only a remark.
    """
    strict = e.is_on("fail-on-environ-validation") and not took_them(e)
    missing = tuple(missing_variables(e))
    if e.engine not in {"vllm", ""} or not missing or not (strict or flags_alone(e)):
        return
    names = ", ".join(each.said for each in missing)
    yield Finding(
        Label.BAD_FLAGS,
        f"vLLM {e.version} does not read {names}"
        + (", and ends, as --fail-on-environ-validation asks" if strict else ": without effect"),
        tuple(Fact(f"{each.said} {each.why}") for each in missing),
        Advice(
            "; ".join(f"{each.said} -> {each.instead}" for each in missing),
            "the server starts" if strict else "what was meant takes effect",
            verify="the start-up log names what was chosen",
        ),
        Severity.CRITICAL if strict else Severity.WARNING if _asks_for_more(e, missing) else Severity.NOTE,
        0.8 if strict else 0.7,
        explains=frozenset({Label.UNDETERMINED}),
    )


def _asks_for_more(e: Evidence, missing: tuple[Missing, ...]) -> bool:
    """Whether something is meant that the version does not do anyway, as V1 where there is no other."""
    names = {each.name.partition("=")[0] for each in missing}
    return any(name in names and (name, value) not in _ANYWAY for name, value in variables(e))


_ANYWAY = {("VLLM_USE_V1", "1"), ("VLLM_USE_V1", "1.0"), ("VLLM_USE_V1", "True")}


RULES = (refused, lacks_flags, unread_variables)
