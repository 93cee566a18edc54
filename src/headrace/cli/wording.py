"""Texts for a load: by the tokenizer that is served where one is to be had, else of about so many tokens.

--tokenizer, Target -> wording_of -> Wording -> Wording.of_trace, .of_asks, .of_endless
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.cli.measuring import Target
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.exchange import Ask
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.executor.tokenizer_file import names_files, of_files
from headrace.net.remote_tokenizer import RemoteTokenizer
from headrace.workload.asks import Sent, arrivals_of, reworded, rewording
from headrace.workload.texts import ExactTexts
from headrace.workload.trace import TraceRequest
from headrace.workload.vocabulary import Vocabulary, find_vocabulary, of_tokenizer
from headrace.workload.word_texts import WordTexts

SERVERS, NONE = "server", "none"
"""Words for --tokenizer."""
PROVEN = 16
"""Texts of an endless load that are encoded before it: all would never end."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How prompts are worded."""

    vocabulary: Vocabulary | None = None
    """None: a word is about a token."""
    why_not: str = ""
    """Why it is not exact although that was wanted."""

    @property
    def said(self) -> str:
        return "exact prompt lengths" if self.vocabulary else "prompt lengths about as said"

    def of_trace(self, requests: Sequence[TraceRequest], seed: int) -> Sent:
        if self.vocabulary is None:
            return arrivals_of(requests, WordTexts(seed), exact=False)
        return arrivals_of(requests, ExactTexts(self.vocabulary, seed), exact=True)

    def of_asks(self, asks: Sequence[Ask], seed: int) -> Sequence[Ask]:
        return reworded(asks, ExactTexts(self.vocabulary, seed)) if self.vocabulary else asks

    def of_endless(self, asks: Iterator[Ask], seed: int) -> Iterator[Ask]:
        if self.vocabulary is None:
            return asks
        return rewording(asks, ExactTexts(self.vocabulary, seed))

    def prove(self, asks: Iterator[Ask], seed: int) -> None:
        """Raises `BadInput` where the first texts of an endless load have other tokens than they should."""
        self.of_asks(list(islice(asks, PROVEN)), seed)


WORDS = Wording()


def wording_of(tokenizer: str, target: Target) -> Wording:
    """Raises `HeadraceError` for a tokenizer that was named and will not do; the server's own need not."""
    if tokenizer == NONE:
        return WORDS
    if tokenizer != SERVERS and names_files(tokenizer):
        return Wording(find_vocabulary(of_files(tokenizer), f"{tokenizer} with its chat template"))
    if tokenizer != SERVERS:
        return Wording(of_tokenizer(OpenVinoTokenizer(locate(tokenizer))))
    try:
        return Wording(_of_server(target))
    except (TargetFailed, BadInput) as error:
        return Wording(why_not=str(error))


def _of_server(target: Target) -> Vocabulary:
    remote = RemoteTokenizer(target.url, target.model, target.api_key)

    def encode(messages: Sequence[str]) -> list[list[int]]:
        return asyncio.run(remote.tokens_of(messages))

    return find_vocabulary(encode, "the server's tokenizer with its chat template")
