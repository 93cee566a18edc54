"""The routes.

POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize
GET  /v1/models, /health, /ping, /version, /load, /metrics, /openapi.json
"""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headrace.net.about import About, TokensEndpoint, detokenize, tokenize
from headrace.net.front_end import FrontEnd
from headrace.net.gate import Gate
from headrace.net.generate import CHAT, COMPLETION, GenerateEndpoint
from headrace.net.openapi import openapi
from headrace.net.replies import http_error_json
from headrace.net.responses import json_response


def make_app(front_end: FrontEnd, gate: Gate) -> Starlette:
    """All routes over one engine."""
    about = About(front_end, gate)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", GenerateEndpoint(front_end, gate, CHAT), methods=["POST"]),
            Route("/v1/completions", GenerateEndpoint(front_end, gate, COMPLETION), methods=["POST"]),
            Route("/v1/models", about.models),
            Route("/tokenize", TokensEndpoint(front_end, tokenize), methods=["POST"]),
            Route("/detokenize", TokensEndpoint(front_end, detokenize), methods=["POST"]),
            Route("/health", about.health),
            Route("/ping", about.health, methods=["GET", "POST"]),
            Route("/version", about.version),
            Route("/load", about.load),
            Route("/metrics", about.metrics),
            Route("/openapi.json", _description),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_bug},
    )


def paths_of(app: Starlette) -> frozenset[str]:
    return frozenset(route.path for route in app.routes if isinstance(route, Route))


async def _description(_: HttpRequest) -> Response:
    return json_response(openapi())


async def _on_http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for nothing else"
    name = {404: "NotFoundError", 405: "MethodNotAllowedError"}.get(error.status_code, "BadRequestError")
    headers = dict(error.headers) if error.headers else None
    message = error.detail
    if error.status_code == 404:
        paths = ", ".join(route.path for route in request.app.routes)
        message = f"there is no {request.url.path} here; there are {paths}"
    elif error.status_code == 405 and headers:
        message = f"{request.url.path} does not take {request.method}; it takes {headers['Allow']}"
    return json_response(http_error_json(error.status_code, name, message), error.status_code, headers)


async def _on_bug(_: HttpRequest, error: Exception) -> Response:
    message = f"the server has a bug: {type(error).__name__}"
    return json_response(http_error_json(500, "InternalServerError", message), 500)
