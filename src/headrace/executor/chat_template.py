"""A model's chat template: a conversation to text.

Rendered by jinja2, as in the library that templates are written for; GenAI's own renderer holds the
interpreter lock for as long as a template cares to loop. A template comes with the model, so it is
somebody else's program: it runs in jinja2's sandbox, with bounds (`template_bounds.py`), and gets a
fixed number of steps.
"""

import collections
import json
import sys
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import jinja2.runtime
import jinja2.sandbox
from jinja2.ext import loopcontrols

from headrace.core.errors import BadInput
from headrace.core.ports import Chat
from headrace.executor import template_bounds
from headrace.executor.template_bounds import BoundedEnvironment

_MOST_STEPS = 300_000  # lines of the template's Python; real ones take some dozen a message

_SHORT = frozenset(
    module.__file__ for module in (template_bounds, jinja2.runtime, jinja2.sandbox, collections)
)
"""Whose functions are short: what a template repeats, it repeats in lines of its own."""


class ChatTemplate:
    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template: jinja2.Template | None = None
        self._fault = "the model has no chat template"
        self.takes_tools = False
        environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self._environment = environment
        environment.filters["tojson"] = _to_json  # jinja2's own escapes for HTML
        if source:
            try:
                self._template = environment.from_string(source, globals=_functions())
                variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
                self.takes_tools = "tools" in variables
            except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
                self._fault = f"the model's chat template is broken: {last_line(error)}"

    def render(self, chat: Chat) -> str:
        """As the `transformers` library fills in templates. Its own names go before a caller's."""
        if self._template is None:
            raise BadInput(self._fault, "send the prompt as text, to /v1/completions")
        turns = [{"role": turn.role, "content": turn.content, **turn.more} for turn in chat.messages]
        known = {
            **chat.template_kwargs,
            **self._tokens,
            "messages": turns,
            "tools": [*chat.tools] or None,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        try:
            self._environment.begin()
            with _Steps(_MOST_STEPS):
                text = self._template.render(known)
        except Exception as error:  # a template is a program: it can fail in any way
            raise BadInput(
                f"the model's chat template refuses these messages: {last_line(error)}",
                "check roles and their order; some models take no system message",
            ) from error
        return _left_open(text, chat.messages[-1].content) if chat.continue_final_message else text


def _left_open(text: str, last: str) -> str:
    """`text` up to the end of the last message. Templates may strip it, or drop it."""
    place = text.rfind(last.strip())
    if place < 0:
        raise BadInput(
            "the model's chat template changes or drops the final message, so it cannot be continued",
            "set continue_final_message to false",
        )
    unstripped = last.lstrip()
    kept = unstripped if text.startswith(unstripped, place) else last.strip()
    return text[: place + len(kept)]


class _Steps:
    """Lets the code inside run for so many lines of Python, then raises in the middle of it."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "call" and frame.f_code.co_filename in _SHORT:
            return None  # to count their lines took half of a rendering
        self._left -= 1
        if self._left < 0:
            raise RuntimeError(f"it did not end within {_MOST_STEPS} steps")
        return self._trace


def _functions() -> dict[str, Any]:
    """What templates may call beyond jinja2's own."""
    return {"raise_exception": _refuse, "strftime_now": _strftime_now}


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
