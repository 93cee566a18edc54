"""What words mean: flags, metrics, budgets, and claims that circulate; from data/terms.toml.

"--max-num-seqs" | "vllm:kv_cache_usage_perc" | "does KV fragment?" -> explained -> Term and Myth
"""

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from headrace.core.errors import BadInput
from headrace.diagnose.flag_facts import Gone, flag_facts

_LONGEST_QUESTION = 300


@dataclass(frozen=True, slots=True)
class Term:
    names: tuple[str, ...]
    what: str
    budget: str
    raising: str
    lowering: str
    versions: str
    see: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Myth:
    """A claim, and what is true. Asked after when all words of one group stand in the question."""

    words: tuple[tuple[str, ...], ...]
    claim: str
    truth: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Explained:
    asked: str
    term: Term | None
    gone: Gone | None
    myths: tuple[Myth, ...]


@cache
def terms() -> tuple[Term, ...]:
    return msgspec.convert(_table()["term"], type=tuple[Term, ...])


@cache
def myths() -> tuple[Myth, ...]:
    return msgspec.convert(_table()["myth"], type=tuple[Myth, ...])


@cache
def _table() -> dict[str, list[object]]:
    return tomllib.loads(files("headrace.diagnose").joinpath("data/terms.toml").read_text("utf-8"))


def explained(question: str) -> Explained:
    """Raises `BadInput` with the nearest names where nothing fits."""
    asked = question[:_LONGEST_QUESTION]
    name = _plain(asked)
    flag = name.replace("_", "-").replace(" ", "-")
    term = next((t for t in terms() if name in map(_plain, t.names)), None)
    term = term or _named_in(name)
    gone = flag_facts().gone.get(flag)
    claims = tuple(m for m in myths() if any(all(_plain(w) in name for w in group) for group in m.words))
    if term is None and gone is None and not claims:
        known = [n for t in terms() for n in t.names] + list(flag_facts().gone)
        near = difflib.get_close_matches(name, [_plain(n) for n in known], n=3, cutoff=0.5)
        hint = f"near: {', '.join(near)}" if near else "`headrace explain` lists what there is"
        raise BadInput(f"nothing is known of {asked.strip()[:60]!r}", hint)
    return Explained(asked, term, gone, claims)


def _named_in(name: str) -> Term | None:
    """The term with the longest name that stands in a question as a whole word."""
    found = [
        (len(n), t)
        for t in terms()
        for n in map(_plain, t.names)
        if len(n) > 2 and re.search(rf"(?<!\w){re.escape(n)}(?!\w)", name)
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _plain(text: str) -> str:
    """Spelt one way: no dashes before, no prefix of metrics, words apart by underscores or blanks alike."""
    text = re.sub(r"^-+|^(?:vllm|headrace|sglang):", "", text.strip().lower())
    return re.sub(r"[\s_-]+", " ", text).strip(" ?.!")


def term_names() -> Sequence[str]:
    return [term.names[0] for term in terms()]
