"""The description of our endpoints, made from the very types that read and write their bodies."""

from functools import cache
from typing import Any

import msgspec

from headrace import __version__
from headrace.net import bodies, shapes

_REF = "#/components/schemas/{name}"
_TYPES = (
    *(bodies.ChatBody, bodies.CompletionBody, bodies.TokenizeBody, bodies.TokenizeChatBody),
    *(bodies.DetokenizeBody, shapes.ChatCompletion, shapes.ChatCompletionChunk, shapes.Completion),
    *(shapes.CompletionChunk, shapes.ErrorBody, shapes.ModelList, shapes.TokenizeAnswer),
    *(shapes.DetokenizeAnswer, shapes.VersionAnswer, shapes.LoadAnswer),
)
_REFUSALS = {
    400: "something in the request cannot be used; `param` names it where it is one field",
    401: "the server asks for a key, and this is none of its keys",
    404: "no model of that name is served here",
    408: "the body did not come to its end in time",
    413: "the body is larger than any prompt that fits",
    503: "no room, no engine, or shutting down; `Retry-After` says when to come again where waiting helps",
    504: "the answer took longer than the server allows",
}
_OF_BODIES = (400, 401, 404, 408, 413)


@cache
def openapi() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    schemas, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    of = dict(zip(_TYPES, schemas, strict=True))
    error = of[shapes.ErrorBody]
    tokenize = {"anyOf": [of[bodies.TokenizeBody], of[bodies.TokenizeChatBody]]}

    def generate(body: type, whole: type, event: type) -> dict[str, Any]:
        answers = {"application/json": {"schema": of[whole]}, "text/event-stream": _events(of[event], error)}
        return {"post": _operation(of[body], answers, error, (*_OF_BODIES, 503, 504))}

    def post(body: dict[str, Any], answer: type) -> dict[str, Any]:
        return {"post": _operation(body, _json(of[answer]), error, _OF_BODIES)}

    def get(answer: type, *refusals: int) -> dict[str, Any]:
        return {"get": _operation(None, _json(of[answer]), error, refusals)}

    health = _operation(None, {}, error, (503,))
    text = _operation(None, {"text/plain": {"schema": {"type": "string"}}}, error, ())
    anything = _operation(None, _json({"type": "object"}), error, (401,))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__},
        "paths": {
            "/v1/chat/completions": generate(
                bodies.ChatBody, shapes.ChatCompletion, shapes.ChatCompletionChunk
            ),
            "/v1/completions": generate(bodies.CompletionBody, shapes.Completion, shapes.CompletionChunk),
            "/v1/models": get(shapes.ModelList, 401),
            "/tokenize": post(tokenize, shapes.TokenizeAnswer),
            "/detokenize": post(of[bodies.DetokenizeBody], shapes.DetokenizeAnswer),
            "/health": {"get": health},
            "/ping": {"get": health, "post": health},
            "/version": get(shapes.VersionAnswer),
            "/load": get(shapes.LoadAnswer),
            "/metrics": {"get": text},
            "/openapi.json": {"get": anything},
        },
        "components": {"schemas": components},
    }


def _operation(
    body: dict[str, Any] | None, answers: dict[str, Any], error: dict[str, Any], refusals: tuple[int, ...]
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "done", **({"content": answers} if answers else {})}}
    for status in refusals:
        responses[str(status)] = {"description": _REFUSALS[status], "content": _json(error)}
    operation: dict[str, Any] = {"responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _events(data: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """Each event of a stream; its data is JSON, but for the last one's, which is [DONE]."""
    inside = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [data, error]}}
    text = {"type": "string", "anyOf": [{"const": "[DONE]"}, inside]}
    return {"schema": {"type": "object", "properties": {"data": text}, "required": ["data"]}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
