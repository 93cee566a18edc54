"""A chat template that means no good, behind a real server: who chats is told, everybody else is served."""

import dataclasses
from functools import partial

import pytest

from headrace.core.ports import Chat
from headrace.executor.chat_template import ChatTemplate
from headrace.executor.scripted import ScriptedTokenizer
from tests.net.http import post, posted, read_answer
from tests.net.serving import running, service

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
PLAIN = {"prompt": "Hello", "max_tokens": 3}


class Templated(ScriptedTokenizer):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._template = ChatTemplate(source, "", "")

    def apply_chat_template(self, chat: Chat) -> str:
        return self._template.render(chat)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% for", "the model's chat template is broken"),
        ("{{ raise_exception('not today') }}", "refuses these messages: not today"),
        (
            "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
            "did not end within",
        ),
        ("{{ 9 ** (9 ** 9) }}", "more than 4096 bits"),
        ("{{ 'x' * 10 ** 12 }}", "more than 268,435,456 characters"),
    ],
)
def test_a_hostile_template_costs_those_who_use_it_a_400_and_nobody_else_anything(
    source: str, complaint: str
) -> None:
    hostile = dataclasses.replace(service(), load_tokenizer=partial(Templated, source))
    with running(hostile) as server:
        with posted(server.port, "/v1/chat/completions", {**CHAT, "stream": True}) as chat:
            assert post(server.port, "/v1/completions", PLAIN).status == 200
            answer = read_answer(chat)
        assert answer.status == 400
        assert complaint in answer.error
        assert post(server.port, "/v1/completions", PLAIN).status == 200
