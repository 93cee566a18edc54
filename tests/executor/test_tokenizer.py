"""The built-in model's tokenizer and template, and templates that mean no good."""

import dataclasses
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from headrace.core.errors import BadInput, ModelUnusable
from headrace.core.ports import Chat, ChatMessage
from headrace.executor import convert
from headrace.executor.chat_template import ChatTemplate
from headrace.executor.models import ModelFiles
from headrace.executor.tokenizer import LONG_TEXT, OpenVinoTokenizer
from headrace.executor.tokenizer_graph import graph_of, tokenizers_core
from tests.executor.prompts import PROMPTS

HELLO = Chat((ChatMessage("user", "Hello"),))
model = [pytest.mark.slow, pytest.mark.model]


def render(source: str, chat: Chat = HELLO) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(chat)


DOUBLED = (
    "{{% set ns = namespace(s='sixteen letters.') %}}"
    "{{% for i in range(60) %}}{{% set ns.s = ns.s {operator} ns.s %}}{{% endfor %}}{{{{ ns.s }}}}"
)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "has no chat template"),
        ("{% for", "is broken"),
        ("{{ raise_exception('no system message, please') }}", "no system message, please"),
        ("{{ messages[7].content }}", "refuses"),
        ("{{ nothing.at.all }}", "refuses"),
        ("{{ messages[0]['role'] + 1 }}", "refuses"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{% for i in range(10000000) %}x{% endfor %}", "refuses"),
        ("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "did not end"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "refuses"),
        ("{{ 9 ** (9 ** 9) }}", "more than 4096 bits"),
        (
            "{% set ns = namespace(n=7) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
            "bits",
        ),
        ("{{ 'x' * 10 ** 11 }}", "more than 268,435,456 characters"),
        ("{{ (range(90000) | list * 90000) | length }}", "more than 268,435,456 characters"),
        (DOUBLED.format(operator="+"), "more than 268,435,456 characters"),
        (DOUBLED.format(operator="~"), "more than 268,435,456 characters"),
        ("{% set a = 'x' * 100000 %}{{ a.replace('x', a) | length }}", "characters"),
        ("{% set a = 'x' * 100000 %}{{ a | replace('x', a) | length }}", "characters"),
        ("{% set a = 'x' * 1000000 %}{% for i in range(9000) %}{{ a }}{% endfor %}", "characters"),
        ("{{ (range(90000) | list) | join('x' * 1000000) | length }}", "characters"),
        ("{{ 'x'.center(10 ** 11) }}", "center with 100000000000"),
        ("{{ 'x' | indent(10 ** 11, true) }}", "indent with 100000000000"),
        ("{{ '%99999999999d' % 3 }}", "as wide as it likes"),
        ("{{ '%*d' % (10 ** 11, 3) }}", "as wide as it likes"),
        ("{{ '{:>99999999999}'.format(3) }}", "as wide as it likes"),
        ("{{ '{:{w}}'.format(3, w=10 ** 11) }}", "as wide as it likes"),
    ],
)
def test_a_template_that_refuses_loops_or_reaches_out_is_bad_input(source: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        render(source)


def test_the_bounds_leave_what_templates_do_alone() -> None:
    assert render(
        "{{ 1700000000 | tojson }} {{ '%d-%s' % (10 ** 9, 'x') }} {{ '{}:{:>5}'.format(10 ** 9, 3) }}"
    ) == ("1700000000 1000000000-x 1000000000:    3")
    assert render(
        "{{ 'a' ~ 1 ~ none }}{{ 'a,b'.split(',') | join('+') }}{{ 'aba' | replace('a', 'bb') }}"
    ) == ("a1Nonea+bbbbbb")
    text = "long " * 200_000
    assert render(
        "{% for m in messages %}{{ '<' + m.content | trim ~ '>' }}{% endfor %}",
        Chat((ChatMessage("user", text),)),
    )


def test_a_bound_is_for_one_rendering() -> None:
    template = ChatTemplate("{{ 'x' * 100000000 }}", "", "")
    for _ in range(4):
        assert len(template.render(HELLO)) == 10**8


def test_a_template_knows_what_such_templates_expect() -> None:
    assert render("{{ bos_token }}{{ messages[0].role | tojson }}{{ eos_token }}") == '<s>"user"</s>'
    assert render("{% for m in messages %}{% if true %}{% continue %}{% endif %}no{% endfor %}yes") == "yes"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | default([]) | tojson }}[end]"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{{ mood }}"
)


def test_a_template_that_asks_for_tools_is_known_and_gets_them() -> None:
    chat = Chat(
        (ChatMessage("assistant", "", {"tool_calls": [{"function": {"arguments": {"a": 1}}}]}),),
        tools=({"type": "function"},),
    )
    assert ChatTemplate(TOOLS, "", "").takes_tools
    assert not ChatTemplate("{{ messages }}", "", "").takes_tools
    assert render(TOOLS, chat) == (
        '{"type": "function"}\n[assistant][{"function": {"arguments": {"a": 1}}}][end][assistant]'
    )


def test_a_caller_s_names_reach_the_template_but_never_replace_its_own() -> None:
    chat = Chat(HELLO.messages, template_kwargs={"mood": "calm", "messages": [], "bos_token": "x"})
    assert render(TOOLS, chat) == "[user]Hello[][end][assistant]calm"


def test_the_final_message_can_be_left_open() -> None:
    chat = Chat((ChatMessage("assistant", " Once upon "),), continue_final_message=True)
    assert render("[{{ messages[-1].content }}][end]", chat) == "[ Once upon "
    assert render("[{{ messages[-1].content | trim }}][end]", chat) == "[Once upon"
    with pytest.raises(BadInput, match="cannot be continued"):
        render("nothing", chat)


@pytest.mark.slow
@pytest.mark.model
class TestBuiltIn:
    def test_the_bytes_of_tokens_make_up_the_text(self, tokenizer: OpenVinoTokenizer) -> None:
        for text in PROMPTS:
            assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
        assert tokenizer.token_bytes(2) == b"<|im_end|>"
        assert tokenizer.token_bytes(49_152) == b""
        assert not tokenizer.takes_tools

    def test_text_survives_and_nothing_is_added(self, tokenizer: OpenVinoTokenizer) -> None:
        for text in PROMPTS:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
        assert tokenizer.encode("") == []
        assert tokenizer.encode("Hello") == [19556]

    def test_the_token_that_begins_every_text_of_a_model_is_added_on_demand(
        self, files: ModelFiles, tokenizer: OpenVinoTokenizer
    ) -> None:
        """OpenVINO GenAI knows nothing of a file's add_bos_token. The built-in model has none."""
        assert files.first_token_id is None
        assert tokenizer.encode("Hello", add_special_tokens=True) == [19556]
        begins = OpenVinoTokenizer(dataclasses.replace(files, first_token_id=1))
        assert begins.encode("Hello", add_special_tokens=True) == [1, 19556]
        assert begins.encode("Hello") == [19556]
        with pytest.raises(ModelUnusable, match="the token 49152 before every text"):
            OpenVinoTokenizer(dataclasses.replace(files, first_token_id=49_152))

    def test_special_tokens_in_a_text_are_recognised(self, tokenizer: OpenVinoTokenizer) -> None:
        tokens = tokenizer.encode("a<|im_end|>")
        assert tokens[-1] == tokenizer.eos_token_id == 2
        assert tokenizer.decode(tokens) == "a"
        assert tokenizer.vocab_size == 49_152

    def test_a_text_longer_than_the_context_is_not_cut(self, tokenizer: OpenVinoTokenizer) -> None:
        assert len(tokenizer.encode("one two three " * 6000)) >= 18_000

    def test_what_the_converter_mends_stays_mended(self, files: ModelFiles, tmp_path: Path) -> None:
        for path in files.folder.glob("openvino_*tokenizer.*"):
            shutil.copy(path, tmp_path)
        convert.mend(tmp_path)
        again = OpenVinoTokenizer(dataclasses.replace(files, folder=tmp_path))
        assert len(again.encode("one two three " * 3000)) >= 9000
        assert again.apply_chat_template(HELLO).endswith("assistant\n")
        assert again.eos_token_id == 2

    def test_a_long_text_has_the_tokens_that_the_library_gives_it(self, tokenizer: OpenVinoTokenizer) -> None:
        for text in (
            *(prompt * (1 + 3000 // len(prompt)) for prompt in PROMPTS),
            "".join(PROMPTS) * 9,
            "\n" * 9000,
            "a" * 9000,
        ):
            assert len(text) > LONG_TEXT
            assert tokenizer.encode(text) == tokenizer._encode(text, False)
            assert tokenizer.encode(text, add_special_tokens=True) == tokenizer._encode(text, True)

    def test_others_go_on_while_a_long_text_is_tokenized(self, tokenizer: OpenVinoTokenizer) -> None:
        """GenAI keeps Python's lock: a text of 2 MB stopped a whole server for seconds, in any thread."""
        text, turns = "".join(map(str, range(200_000))), 0
        tokenizer.encode("a" * 3000)
        with ThreadPoolExecutor(1) as pool:
            encoded = pool.submit(tokenizer.encode, text)
            while not encoded.done():
                time.sleep(0.001)
                turns += 1
        assert turns > 5

    def test_a_graph_that_does_not_do_what_the_library_does_is_left_alone(
        self, files: ModelFiles, tokenizer: OpenVinoTokenizer, tmp_path: Path
    ) -> None:
        def marked(text: str, special: bool) -> list[int]:
            return [1] * special + tokenizer._encode(text, special)

        assert graph_of(files.folder, tokenizer._encode) is not None
        assert graph_of(files.folder, marked) is None
        model = tokenizers_core().read_model(files.folder / "openvino_tokenizer.xml")
        for node in model.get_ops():
            if node.get_type_name() == "Minimum":
                node.input(1).replace_source_output(opset13.constant(np.array(8192, np.int32)).output(0))
        ov.save_model(model, tmp_path / "openvino_tokenizer.xml", compress_to_fp16=False)
        assert graph_of(tmp_path, tokenizer._encode) is None, "it would cut long texts"

    def test_half_a_character_is_refused(self, tokenizer: OpenVinoTokenizer) -> None:
        with pytest.raises(BadInput, match="half a character at place 1"):
            tokenizer.encode("a\ud800")

    def test_half_a_character_of_the_model_shows(self, tokenizer: OpenVinoTokenizer) -> None:
        tokens = tokenizer.encode("\U000e0041")  # rare enough to be spelled in bytes
        assert len(tokens) > 1
        assert tokenizer.decode(tokens[:-1]).endswith("\ufffd")

    def test_ids_outside_the_vocabulary_say_nothing(self, tokenizer: OpenVinoTokenizer) -> None:
        assert tokenizer.decode([19556, 49_152, -1, 1 << 70]) == "Hello"

    def test_the_chat_template_is_the_model_s_own(self, tokenizer: OpenVinoTokenizer) -> None:
        brief = Chat((ChatMessage("system", "Be brief."), *HELLO.messages))
        assert tokenizer.apply_chat_template(brief) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_threads_do_not_disturb_one_another(self, tokenizer: OpenVinoTokenizer) -> None:
        expected = [tokenizer.encode(text) for text in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(tokenizer.encode, PROMPTS * 4)) == expected * 4
            decode = partial(tokenizer.decode, skip_special_tokens=False)
            texts = pool.map(decode, expected * 4)
            assert list(texts) == list(PROMPTS) * 4
