"""What the first request would pay for in the process that speaks HTTP, done before the port is opened."""

import contextlib

from headrace.core.errors import BadInput
from headrace.core.ports import Chat, ChatMessage, Tokenizer
from headrace.core.request import Grammar, GrammarKind

LONG = "Hello! " * 500


def warm_up(tokenizer: Tokenizer) -> None:
    """Text to tokens and back: three times as long at first; long text: 50 ms. A grammar: 0.2 s."""
    text = "Hello!"
    with contextlib.suppress(BadInput):  # not every model has a chat template
        text = tokenizer.apply_chat_template(Chat((ChatMessage("user", text),)))
    tokenizer.decode(tokenizer.encode(text))
    tokenizer.encode(LONG)
    tokenizer.check_grammar(Grammar(GrammarKind.REGEX, "[a-z]+"))
