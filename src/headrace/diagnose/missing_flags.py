"""Flags that a version of vLLM does not have: gone, never there, not there yet, misspelt.

Evidence -> missing_flags -> Missing(name, why, instead)
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.flag_facts import NEWEST, Gone, Release, flag_facts

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


@dataclass(frozen=True, slots=True)
class Missing:
    name: str
    why: str
    instead: str
    ever: bool = True
    """Whether some version has it: one that never was is refused by every version."""


def flags_alone(e: Evidence) -> bool:
    """Whether nothing was seen of the server that these flags are for."""
    return not e.events and all(name.startswith(_OF_A_COMMAND) for name in e.readings)


def took_them(e: Evidence) -> bool:
    """Whether the server is seen to have started, so that it knows its flags."""
    return bool(e.counts.get("ready") or e.number("host:server_runs"))


def missing_flags(e: Evidence) -> Iterator[Missing]:
    """Of the flags that are there, those that the version lacks; of an unknown version those that the newest
    does.
    """
    facts, now = flag_facts(), e.release or NEWEST
    for name in e.flags:
        if (flag := facts.gone.get(name)) is not None:
            if flag.until is None:
                yield Missing(name, _gone_since(flag), flag.instead, ever=False)
            elif now >= flag.until and (e.release is not None or flag.idle is None):
                yield Missing(name, _gone_since(flag), flag.instead)
        elif facts.surely_later(name, now):
            since = facts.since[name]
            yield Missing(name, f"came with vLLM {_dotted(since)}", _newer(since))
        elif now >= NEWEST and e.engine == "vllm" and _is_strange(e, name):
            yield _stranger(name)


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))


def _gone_since(flag: Gone) -> str:
    """With its source."""
    if flag.until is None:
        return f"never was a flag of vLLM ({flag.source})"
    return f"is not in vLLM from {_dotted(flag.until)} on ({flag.source})"


def _newer(since: Release) -> str:
    return f"vLLM {_dotted(since)} or newer, or leave it out"


def _is_strange(e: Evidence, name: str) -> bool:
    """Given by a person, and not in the list of the newest version."""
    facts = flag_facts()
    told = not any(place in e.flags[name].where for place in _READ_FROM_A_SERVER)
    known = facts.switches | facts.options | {_POSITIONAL}
    return told and name.partition(".")[0] not in known and not name.isupper()


def _stranger(name: str) -> Missing:
    facts, version = flag_facts(), _dotted(NEWEST[:2])
    near = difflib.get_close_matches(name, [*facts.switches, *facts.options], n=1, cutoff=0.8)
    return Missing(
        name,
        f"is no flag of vLLM {version}" + (f": did you mean --{near[0]}?" if near else ""),
        f"--{near[0]}" if near else f"leave it out, or look for it in `vllm serve --help=all` of {version}",
    )


def is_option_of(written: str) -> bool:
    """Whether vLLM has or had such an argument: `swap_space` of a call is --swap-space of a command."""
    facts = flag_facts()
    name = facts.full_name(written)
    return name in facts.gone or name in facts.switches or name in facts.options


def replaced(written: str) -> Missing:
    """A flag that a server refused: where it went, what is near, or nothing known of it."""
    facts = flag_facts()
    name = facts.full_name(written)
    if (flag := facts.gone.get(name)) is not None:
        return Missing(name, _gone_since(flag), flag.instead)
    if (since := facts.since.get(name)) is not None:
        return Missing(name, f"came with vLLM {_dotted(since)}", _newer(since))
    if name in facts.switches or name in facts.options:
        return Missing(name, "", "this version does not have it: leave it out, or a newer vLLM")
    return _stranger(name)
