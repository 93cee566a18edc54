"""The fields of a chat that offer the model functions to call.

    tools, tool_choice, parallel_tool_calls --read_tools--> ToolUse | None, Grammar | None

As in vLLM: `auto` leaves it to the model, whose answer is then searched for calls; `required` and a
named function are forced by a grammar, so the answer is nothing but calls.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from headrace.core.request import Grammar
from headrace.net.bodies import ChatBody, FunctionDefinition, NamedTool, Tool
from headrace.net.fields import BadField, refuse, shown
from headrace.net.grammar_fields import call_grammar

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class ToolChoice(Enum):
    AUTO = auto()
    REQUIRED = auto()
    NAMED = auto()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How calls are to be found in an answer."""

    choice: ToolChoice
    name: str = ""
    """Of the one function that is called; only where it is named."""
    most_calls: int | None = None
    """None: any number."""


def template_tools(tools: list[Tool] | None) -> tuple[dict[str, Any], ...]:
    """Tools in the shape that chat templates expect: the one that vLLM hands them."""
    return tuple({"type": tool.type, "function": _template_function(tool.function)} for tool in tools or ())


def read_tools(body: ChatBody) -> tuple[ToolUse | None, Grammar | None]:
    """What to look for, and the form that forces it. Raises `BadField`."""
    legacy: dict[str, tuple[Any, ...]] = {"functions": ([],), "function_call": ("none", "auto")}
    refuse(body, legacy, "use tools and tool_choice")
    choice, tools = body.tool_choice, body.tools
    if choice is None and tools:
        choice = "auto"
    if choice is None or choice == "none":
        return None, None
    if not tools:
        raise BadField("tool_choice", "tool_choice needs tools", "send tools, or leave tool_choice out")
    most_calls = 1 if body.parallel_tool_calls is False else None
    match choice:
        case "auto":
            return ToolUse(ToolChoice.AUTO, most_calls=most_calls), None
        case "required":
            return ToolUse(ToolChoice.REQUIRED), call_grammar(_any_call(tools, most_calls), "tools")
        case NamedTool(function=named):
            wanted = [tool.function for tool in tools if tool.function.name == named.name]
            if not wanted:
                raise BadField("tool_choice", f"no tool is called {shown(named.name)}")
            use = ToolUse(ToolChoice.NAMED, named.name)
            return use, call_grammar(wanted[0].parameters or _NO_PARAMETERS, "tools")
        case _:
            raise BadField(
                "tool_choice",
                f"tool_choice is {shown(choice)}",
                "use none, auto, required or a named function",
            )


def _template_function(function: FunctionDefinition) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }


def _any_call(tools: list[Tool], most_calls: int | None) -> dict[str, Any]:
    """The schema of a list of calls. `$defs` move to the top: references in it start there."""
    definitions: dict[str, Any] = {}
    calls = [_call(tool.function, definitions) for tool in tools]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if most_calls is not None:
        schema["maxItems"] = most_calls
    return {**schema, "$defs": definitions} if definitions else schema


def _call(function: FunctionDefinition, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(function.parameters or _NO_PARAMETERS)
    own = parameters.pop("$defs", {})
    if not isinstance(own, dict):
        raise BadField("tools", f"$defs of the tool {shown(function.name)} is no object")
    for name, definition in own.items():
        if definitions.setdefault(name, definition) != definition:
            raise BadField("tools", f"two tools define {shown(name)} in $defs, and differently")
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
