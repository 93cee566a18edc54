"""What is worth saying of flags without being a finding: an unknown version may still take them.

Evidence -> remarks -> sentences
"""

import difflib
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.flag_facts import NEWEST, Gone, flag_facts

_READ_FROM_A_SERVER = ("cache_config_info", "log", ".log")
"""Places whose flags the server itself printed: it knows them."""
_POSITIONAL = "model-tag"
"""What vLLM calls the MODEL of `vllm serve MODEL` where it prints its arguments."""


def remarks(e: Evidence) -> tuple[str, ...]:
    if e.engine not in {"vllm", ""} or e.of("unknown_flag"):
        return ()
    return (*_gone(e), *_strangers(e))


def _gone(e: Evidence) -> Iterator[str]:
    for name in e.flags:
        flag = flag_facts().gone.get(name)
        if flag is not None and e.release is None and flag.idle is None:
            yield f"--{name} {_since(flag)}: {flag.instead}"


def _since(flag: Gone) -> str:
    if flag.until is None:
        return "never was a flag of vLLM"
    return f"is not in vLLM from {'.'.join(map(str, flag.until))} on"


def _strangers(e: Evidence) -> Iterator[str]:
    """Given by a person to a server as new as the list, or of unknown version, and not in the list."""
    facts = flag_facts()
    if e.engine != "vllm" or (e.release is not None and e.release < NEWEST):
        return
    known = [*facts.switches, *facts.options, _POSITIONAL]
    for name, flag in e.flags.items():
        told = not any(place in flag.where for place in _READ_FROM_A_SERVER)
        if told and name not in known and name not in facts.gone:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            version = ".".join(map(str, NEWEST[:2]))
            yield f"--{name} is no flag of vLLM {version}" + (f": did you mean --{near[0]}?" if near else "")
