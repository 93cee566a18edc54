"""Grammars that answers must conform to, followed token by token by llguidance.

    Grammar --check, at the door--> BadInput | fine
            --matcher, in the engine--> which tokens may follow, after every token

Somebody else writes the grammar, so all work on it is bounded: by the length of its text, by nested
repetitions, and by the library's own limits, which are counts and not times: what passes at the door
passes in the engine. Knows bytes and token ids, no model.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llguidance
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadInput
from headrace.core.request import Grammar, GrammarKind
from headrace.executor.adjust import GrammarFailed

MOST_CHARACTERS = 50_000
MOST_REPEATS = 20_000
"""What nested counts such as `(a{100}){100}` may multiply to: the library would write them out in memory."""
_REMEMBERED = 16
_NOT_ALLOWED = "satisfy the grammar"
"""In what llguidance says of a token; its other errors are of its limits."""
_LIMITS = llguidance.LLParserLimits(
    step_lexer_fuel=50_000,  # some 5 ms for the worst mask
    max_lexer_states=20_000,  # of 1 to 2 kB
    max_grammar_size=100_000,
    verbose_errors=False,  # they would show the answer
)
_REPEAT = re.compile(r"\\.|(?P<open>\()|(?P<close>\))|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token is in bytes. Under the names by which llguidance asks for them."""

    tokens: Sequence[bytes]
    """By id; empty where an id stands for nothing."""
    special_token_ids: Sequence[int]
    """They mark, and are never part of a text."""
    eos_token_id: int
    encode: Callable[[str], list[int]]
    bos_token_id: int | None = None

    def __call__(self, text: str) -> list[int]:
        return self.encode(text)


class Grammars:
    """Compiles for one vocabulary, which is read when first needed. May be used from many threads."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self._read_vocabulary = read_vocabulary
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()

    def prepare(self) -> None:
        """Read the vocabulary now, which takes about a second."""
        with self._lock:
            if self._tokenizer is None:
                wrapper = llguidance.TokenizerWrapper(self._read_vocabulary())
                self._tokenizer = llguidance.LLTokenizer(wrapper)

    def check(self, grammar: Grammar) -> None:
        """Raises `BadInput` for what is no grammar, allows nothing, or is beyond the limits."""
        self._compile(grammar)

    def matcher(self, grammar: Grammar) -> "GrammarMatcher":
        """At the start of `grammar`. Raises `GrammarFailed`."""
        base = self._compiled.pop(grammar, None)
        if base is None:
            try:
                base = self._compile(grammar)
            except BadInput as error:
                raise GrammarFailed(str(error)) from error
        self._compiled[grammar] = base
        if len(self._compiled) > _REMEMBERED:
            self._compiled.popitem(last=False)
        assert self._tokenizer is not None, "it has just been compiled for"
        return GrammarMatcher(base.deep_copy(), self._tokenizer.eos_token)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        _refuse_excess(grammar)
        self.prepare()
        assert self._tokenizer is not None, "prepared"
        source = _source(grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if not matcher.is_error() and (why := _why_it_cannot_begin(matcher.deep_copy())):
            raise _refused(grammar, why)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher


class GrammarMatcher:
    """Where one answer is in its grammar (`adjust.Matcher`)."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_token_id: int) -> None:
        self._matcher = matcher
        self._eos_token_id = eos_token_id
        self._has_ended = False

    def advance(self, token_id: int) -> None:
        if token_id == self._eos_token_id:
            self._has_ended = True
        elif not self._has_ended and not self._matcher.consume_token(token_id):
            why = self._matcher.get_error()
            if _NOT_ALLOWED in why:
                raise GrammarFailed(f"its grammar does not allow token {token_id}")
            raise self._stuck(why)

    def allowed(self) -> NDArray[np.bool_] | None:
        """None once it has ended: who ignores the end goes on without a grammar, as in vLLM."""
        if self._has_ended:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._stuck(self._matcher.get_error())
        return np.unpackbits(bits, bitorder="little").view(np.bool_)

    def _stuck(self, why: str) -> GrammarFailed:
        """One of the limits, as a rule."""
        return GrammarFailed(f"its grammar cannot be followed further: {_brief(why)}")


def _why_it_cannot_begin(matcher: llguidance.LLMatcher) -> str:
    """Empty if it can. What allows no first token shows here, and what is too wide to follow even one."""
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if not matcher.is_error() and allowed.any():
        matcher.consume_token(int(allowed.argmax()))
    return matcher.get_error()


def _source(grammar: Grammar) -> str:
    """`grammar` in the library's own form. Raises `BadInput`."""
    try:
        match grammar.kind:
            case GrammarKind.JSON:
                return llguidance.LLMatcher.grammar_from_json_schema(grammar.text)
            case GrammarKind.REGEX:
                return llguidance.LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.GRAMMAR:
                return llguidance.grammar_from("grammar", grammar.text)
            case GrammarKind.CHOICE:
                return llguidance.LLMatcher.grammar_from_lark(_any_of(json.loads(grammar.text)))
    except (ValueError, RecursionError) as error:
        raise _refused(grammar, str(error)) from error


def _any_of(choices: object) -> str:
    """Raises `ValueError`."""
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise ValueError("it must be a list of at least one string")
    # As a terminal, which the library's lexer follows: its parser does not follow 2,000 at once.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(each) for each in choices)


def _refuse_excess(grammar: Grammar) -> None:
    name, length = _NAMES[grammar.kind], len(grammar.text)
    if length > MOST_CHARACTERS:
        raise BadInput(
            f"the {name} has {length} characters; at most {MOST_CHARACTERS} are taken",
            "send a smaller one",
        )
    if grammar.kind is not GrammarKind.CHOICE and (repeats := nested_repeats(grammar.text)) > MOST_REPEATS:
        raise BadInput(
            f"the {name} repeats something {repeats} times; at most {MOST_REPEATS} are taken",
            "ask for fewer repetitions, or for any number with `*`",
        )


def nested_repeats(text: str) -> int:
    """The largest product of counts that stand around one another in a regular expression.

    Read roughly (a parenthesis in a class counts as one), so that no trick of syntax hides a count.
    """
    most_in = [1]  # by depth: of what stands in the open parentheses
    last = 1  # of what a count that follows now would repeat
    for found in _REPEAT.finditer(text):
        if found["open"]:
            most_in.append(1)
            last = 1
        elif found["close"]:
            last = most_in.pop()
            most_in = most_in or [1]
        elif found["least"]:
            last *= max(1, int(found["most"] or found["least"]))
        else:
            last = 1
        most_in[-1] = max(most_in[-1], last)
    return max(most_in)


_NAMES = {
    GrammarKind.JSON: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.GRAMMAR: "grammar",
    GrammarKind.CHOICE: "list of choices",
}


def _refused(grammar: Grammar, why: str) -> BadInput:
    return BadInput(
        f"the {_NAMES[grammar.kind]} cannot be followed: {_brief(why)}",
        "it may be wrong, allow nothing, or be too large or of a kind that llguidance does not know",
    )


def _brief(why: str) -> str:
    return " ".join(why.replace("<non-verbose/>", "").split())[:300]
