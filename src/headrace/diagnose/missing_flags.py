"""Flags that a version of vLLM does not have: gone, never there, not there yet, misspelt. So with values of
flags, with --no-x, and with variables of the environment.

Evidence -> missing_flags -> Missing(name, why, instead)
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.flag_facts import NEWEST, Gone, flag_facts
from headrace.diagnose.flag_history import Release, dotted, history, is_variable
from headrace.diagnose.load import load_of

_READ_FROM_A_SERVER = ("cache_config_info", "log", ".log")
"""Places whose flags the server itself printed: it knows them."""
_POSITIONAL = "model-tag"
"""What vLLM calls the MODEL of `vllm serve MODEL` where it prints its arguments."""
_OF_A_COMMAND = (
    "env:",
    "hardware:",
    "host:server_runs",
    "host:servers_started",
    "host:utilization_sum",
    "workload:model",
    "workload:liveness_",
    "workload:startup_probe",
)
"""Readings that come with flags and say nothing of a server at work."""
MOST_STRANGERS = 100
"""Names in no list that are told of: no command has so many."""
_WITH_CHOICES = ("kv-cache-dtype", "quantization", "attention-backend")
_BACKEND = "VLLM_ATTENTION_BACKEND"
"""Takes the names that --attention-backend takes since."""


@dataclass(frozen=True, slots=True)
class Missing:
    """`name`: a flag, a flag and its value, or a variable."""

    name: str
    why: str
    instead: str
    ever: bool = True
    """Whether some version has it: one that never was is refused by every version."""
    is_stranger: bool = False
    """Of a name in no list: in a whole command line a slip, in what somebody told perhaps their word."""

    @property
    def said(self) -> str:
        return self.name if is_variable(self.name) else f"--{self.name}"


def flags_alone(e: Evidence) -> bool:
    """Whether nothing was seen of the server that these flags are for."""
    return not e.events and all(name.startswith(_OF_A_COMMAND) for name in e.readings)


def took_them(e: Evidence) -> bool:
    """Whether the server is seen to have started, so that it knows its flags."""
    at_work = load_of(e).running or e.counts.get("stats") or e.counts.get("ready")
    return bool(at_work or e.number("host:server_runs"))


def missing_flags(e: Evidence) -> Iterator[Missing]:
    """Of the flags that are there, those that the version lacks; of an unknown version those that the newest
    does.
    """
    facts, now, strangers = flag_facts(), e.release or NEWEST, 0
    for name, flag in e.flags.items():
        if is_variable(name.replace("-", "_")):
            continue
        gone = facts.gone.get(name)
        if name in history().spans:
            word = f"no-{name}" if flag.is_negated else name
            if _lacks(e, word) and (e.release is not None or gone is None or gone.idle is None):
                yield _missing(word, now)
            elif name in _WITH_CHOICES:
                yield from _choice(e, name, str(flag.value))
        elif gone is not None:
            yield Missing(name, _gone_since(gone), gone.instead, ever=gone.until is not None)
        elif now <= NEWEST and e.engine == "vllm" and strangers < MOST_STRANGERS and _is_strange(e, name):
            strangers += 1
            yield _stranger(name, now)


def missing_variables(e: Evidence) -> Iterator[Missing]:
    """Of the variables of the environment, those that a known version does not read."""
    if e.release is None:
        return
    for name, value in variables(e):
        if _lacks(e, name):
            yield _missing(name, e.release)
        elif name == _BACKEND:
            for each in _choice(e, "attention-backend", value):
                change = each.instead.replace("--attention-backend ", f"{_BACKEND}=")
                yield Missing(f"{_BACKEND}={value}", each.why, change)


def variables(e: Evidence) -> Iterator[tuple[str, str]]:
    """(name, value) of vLLM's own, however they were told."""
    for reading in e.under("env:"):
        if is_variable(name := reading.name.removeprefix("env:")):
            yield name, reading.text
    for written, flag in e.flags.items():
        if is_variable(name := written.replace("-", "_")):
            yield name, str(flag.value)


def _lacks(e: Evidence, word: str) -> bool:
    """Whether the version surely lacks a word that others have. A build before a release may have what that
    takes away.
    """
    past, now = history(), e.release or NEWEST
    if word not in past.spans or past.has(word, now):
        return False
    return not (e.is_before_release and past.until(word) == now)


def _missing(word: str, release: Release) -> Missing:
    """Of a word that other versions have, before or after this one."""
    since, until, name = history().since(word), history().until(word), word.replace("=", " ")
    if since is not None and release < since:
        return Missing(name, f"came with vLLM {dotted(since)}", _newer(word, since, release))
    gone = flag_facts().gone.get(word) or flag_facts().lost.get(word)
    if gone is not None:
        return Missing(name, _gone_since(gone), gone.instead)
    if until is not None:
        return Missing(name, f"is not in vLLM from {dotted(until)} on", "leave it out")
    return Missing(name, "", "this version does not have it: leave it out, or a newer vLLM")


def _choice(e: Evidence, flag: str, value: str) -> Iterator[Missing]:
    """A value that the version does not know; only the cache's types are the same everywhere, so that
    nobody's plugin brings others.
    """
    value = value.upper() if flag == "attention-backend" else value
    if _lacks(e, f"{flag}={value}"):
        yield _missing(f"{flag}={value}", e.release or NEWEST)
    elif flag == "kv-cache-dtype" and e.engine == "vllm" and _told(e, flag) and value.isidentifier():
        known = [choice for choice in history().choices(flag) if not _lacks(e, f"{flag}={choice}")]
        near = difflib.get_close_matches(value, known, n=1, cutoff=0.8)
        if value not in history().choices(flag) and near:
            why = f"is no value of it: did you mean {near[0]}?"
            yield Missing(f"{flag} {value}", why, f"--{flag} {near[0]}", ever=False)


def _gone_since(flag: Gone) -> str:
    """With when it came, and its source."""
    since = history().since(flag.name)
    told = [*([f"there since {dotted(since)}"] if since else []), *([flag.source] if flag.source else [])]
    grounds = f" ({'; '.join(told)})" if told else ""
    if flag.until is None:
        return f"never was a flag of vLLM{grounds}"
    return f"is not in vLLM from {dotted(flag.until)} on{grounds}"


def _newer(word: str, since: Release, release: Release) -> str:
    return f"{predecessor(word, release) or 'leave it out'}, or vLLM {dotted(since)} or newer"


def predecessor(flag: str, release: Release) -> str:
    """What a version has that the flag took the place of; empty where nothing is known of one."""
    for old in (*flag_facts().gone.values(), *flag_facts().lost.values()):
        follows = old.instead.split()[:1] == [f"--{flag}"]
        if follows and "=" not in old.name and history().has(old.name, release):
            return old.name if is_variable(old.name) else f"--{old.name}"
    return ""


def _told(e: Evidence, name: str) -> bool:
    """Whether a person gave a flag, not the server itself."""
    return not any(place in e.flags[name].where for place in _READ_FROM_A_SERVER)


def _is_strange(e: Evidence, name: str) -> bool:
    """Given by a person, and in the list of no version."""
    given = name.partition(".")[0]
    return _told(e, name) and given not in history().spans and given != _POSITIONAL and not name.isupper()


@lru_cache(MOST_STRANGERS)
def _near(name: str, release: Release) -> list[str]:
    return difflib.get_close_matches(name, _flags_of(release), n=1, cutoff=0.8)


@cache
def _flags_of(release: Release) -> tuple[str, ...]:
    return tuple(flag for flag in history().flags if history().has(flag, release))


def _stranger(name: str, release: Release) -> Missing:
    version = dotted(release[:2])
    near = _near(name, release)
    return Missing(
        name,
        f"is no flag of vLLM {version}" + (f": did you mean --{near[0]}?" if near else ""),
        f"--{near[0]}" if near else f"leave it out, or look for it in `vllm serve --help` of {version}",
        is_stranger=True,
    )


def is_option_of(written: str) -> bool:
    """Whether vLLM has or had such an argument: `swap_space` of a call is --swap-space of a command."""
    name = flag_facts().full_name(written)
    return name in flag_facts().gone or name in history().spans


def replaced(written: str, release: Release | None) -> Missing:
    """A flag that a server refused: where it went, what is near, or nothing known of it. Where the version
    that was told has it, another one runs.
    """
    name = flag_facts().full_name(written)
    gone = flag_facts().gone.get(name)
    if gone is not None and name not in history().spans:
        return Missing(name, _gone_since(gone), gone.instead, ever=gone.until is not None)
    if name not in history().spans:
        return _stranger(name, min(release or NEWEST, NEWEST))
    if release is None or history().has(name, release):
        return _missing(name, NEWEST if history().until(name) else _BEFORE_ALL)
    return _missing(name, release)


_BEFORE_ALL: Release = (0,)
