"""The fields of a body that bind the text of an answer to a form.

    response_format, structured_outputs --read_grammar--> Grammar | None

Whether the grammar itself makes sense is for the library that will follow it to say; here only what
every one of them needs: one form at a time, and no nesting that could be turned against it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.core.request import Grammar, GrammarKind
from headrace.net.bodies import Body, ResponseFormat, StructuredOutputs
from headrace.net.fields import BadField, refuse

DEEPEST_SCHEMA = 64
"""Nested objects and arrays; vLLM's bound. OpenAI allows 10 levels of schema."""
ANY_OBJECT = Grammar(GrammarKind.JSON, '{"type":"object"}')

_REMOVED = {
    "guided_json": 'use structured_outputs, as in {"json": ...}',
    "guided_regex": 'use structured_outputs, as in {"regex": ...}',
    "guided_choice": 'use structured_outputs, as in {"choice": [...]}',
    "guided_grammar": 'use structured_outputs, as in {"grammar": ...}',
    "guided_decoding_backend": "",
    "guided_whitespace_pattern": "",
}
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "structural_tag": (),
    "whitespace_pattern": (),
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
}


def read_grammar(body: Body) -> Grammar | None:
    """Raises `BadField`."""
    for name, instead in _REMOVED.items():
        refuse(body, {name: ()}, instead)
    asked = body.structured_outputs
    own = None if asked is None else _from_structured_outputs(asked)
    from_format = None if body.response_format is None else _from_response_format(body.response_format)
    if own and from_format:
        raise BadField(
            "structured_outputs",
            "response_format and structured_outputs both give a form",
            "send one of them",
        )
    return own or from_format


def json_grammar(schema: object, param: str) -> Grammar:
    """A grammar of a JSON schema. Raises `BadField` for one that nests too deeply."""
    if _is_deeper(schema, DEEPEST_SCHEMA):
        raise BadField(param, f"the JSON schema nests more than {DEEPEST_SCHEMA} objects and arrays")
    return Grammar(GrammarKind.JSON, msgspec.json.encode(schema).decode())


def call_grammar(schema: dict[str, Any], param: str) -> Grammar:
    """Of a call's JSON: with a space after a comma or a colon and none elsewhere, for a small model that may
    choose spaces chooses nothing else until its tokens are spent.
    """
    spaces = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json_grammar({**schema, "x-guidance": spaces}, param)


def _from_response_format(asked: ResponseFormat) -> Grammar | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return ANY_OBJECT
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise BadField(
            "response_format", "response_format of type json_schema has no json_schema.schema", "add it"
        )
    return json_grammar(asked.json_schema.schema, "response_format.json_schema.schema")


def _from_structured_outputs(asked: StructuredOutputs) -> Grammar | None:
    refuse(asked, _UNSUPPORTED, inside="structured_outputs.")
    forms = [
        _json(asked.json),
        None if asked.regex is None else Grammar(GrammarKind.REGEX, asked.regex),
        None if asked.grammar is None else Grammar(GrammarKind.GRAMMAR, asked.grammar),
        _choice(asked.choice),
        ANY_OBJECT if asked.json_object else None,
    ]
    given = [form for form in forms if form is not None]
    if len(given) > 1:
        raise BadField("structured_outputs", f"structured_outputs gives {len(given)} forms", "give one")
    if not given:
        raise BadField(
            "structured_outputs",
            "structured_outputs gives no form",
            "give one of json, regex, choice, grammar, json_object",
        )
    return given[0]


def _json(schema: str | dict[str, Any] | None) -> Grammar | None:
    if schema is None:
        return None
    param = "structured_outputs.json"
    if isinstance(schema, str):
        try:
            return json_grammar(msgspec.json.decode(schema), param)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadField(param, f"the JSON schema is not valid JSON: {error}") from error
    return json_grammar(schema, param)


def _choice(choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    if not choices or "" in choices:
        raise BadField("structured_outputs.choice", "choice is empty, or has an empty string in it")
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(choices).decode())


def _is_deeper(document: object, levels: int) -> bool:
    """Whether objects and arrays nest more than so many levels. Level by level: recursion has a bound."""
    level = [document]
    for _ in range(levels):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(node: object) -> Iterable[object]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
