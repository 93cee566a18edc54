"""jinja2's sandbox, with bounds on what a template can make: numbers, texts and lists.

The sandbox keeps a template from reaching out, and `chat_template.py` counts its steps. One step in C can
still take for ever (`9 ** 9 ** 9`) or all memory (`'x' * 10 ** 11`, a text that is doubled forty times), and
would take the whole server with it. So whatever multiplies is looked at before it is done, and one
rendering may make so many characters and items in all, kept or not.
"""

import functools
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_MADE = 1 << 28
"""Characters and items of one rendering. A context of a million tokens has some four million characters."""
_LARGEST_WIDTH = 1 << 20
_TAKE_A_WIDTH = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "lipsum", "rjust", "slice", "wordwrap", "zfill"}
)
_MOST_BITS = 4096
_WIDE_FORMAT = re.compile(r"[%:.][^a-zA-Z]*\d{7}|%[^a-zA-Z]*\*|\{[^}]*\{")
"""Millions of characters, or a width that is an argument."""


class TooMuchError(RuntimeError):
    """A template that wants more than one is given."""


def _concatenation(generator: CodeGenerator, node: nodes.Concat, frame: Frame) -> None:
    """`a ~ b` is compiled into a call that can be bounded."""
    generator.write("environment.concatenated((")
    for part in node.nodes:
        generator.visit(part, frame)
        generator.write(", ")
    generator.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One template's; renderings in different threads have a count each."""

    code_generator_class = type("Generator", (CodeGenerator,), {"visit_Concat": _concatenation})
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._count = threading.local()
        self.filters = {name: self._bounded(name, each) for name, each in self.filters.items()}

    def begin(self) -> None:
        """A rendering starts."""
        self._count.made = 0

    def concat(self, parts: Iterable[str]) -> str:
        kept = list(parts)
        self._make(sum(map(len, kept)))
        return "".join(kept)

    def concatenated(self, parts: Iterable[object]) -> str:
        return self.concat(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS:
                raise TooMuchError(f"a number of more than {_MOST_BITS} bits")
        elif operator == "*":
            self._make(_size(left) * _times(right) + _size(right) * _times(left))
            if isinstance(left, int) and isinstance(right, int):
                _look_at_bits(left.bit_length() + right.bit_length())
        elif operator == "+":
            self._make(_size(left) + _size(right))
        elif isinstance(left, str):
            _look_at_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
        if isinstance(text := getattr(method, "__self__", None), str):
            self._look_at(method.__name__, (text, *arguments, *named.values()))
        return super().call(context, function, *arguments, **named)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def bounded(*arguments: Any, **named: Any) -> Any:
            self._look_at(name, (*arguments, *named.values()))
            return function(*arguments, **named)

        return bounded

    def _look_at(self, name: str, arguments: tuple[Any, ...]) -> None:
        """What a filter, or a method of a text, would make of its arguments."""
        for each in arguments if name in _TAKE_A_WIDTH else ():
            if isinstance(each, int) and abs(each) > _LARGEST_WIDTH:
                raise TooMuchError(f"{name} with {each}")
        sizes = [size for each in arguments if (size := _size(each))]
        if name == "replace":
            self._make(sizes[0] * max(sizes[1:], default=1) if sizes else 0)
        elif name == "join":
            self._make(
                sum(sizes) * max((_size(each) for each in arguments if isinstance(each, str)), default=1)
            )
        else:
            self._make(sum(sizes))
            if name in {"format", "format_map"}:
                _look_at_format(str(arguments[0]))

    def _make(self, size: int) -> None:
        self._count.made = getattr(self._count, "made", 0) + size
        if self._count.made > MOST_MADE:
            raise TooMuchError(f"more than {MOST_MADE:,} characters")


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple | bytes) else 0


def _times(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _look_at_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TooMuchError(f"a number of more than {_MOST_BITS} bits")


def _look_at_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        raise TooMuchError("a format as wide as it likes")
