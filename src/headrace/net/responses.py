"""Bodies and errors as Starlette's responses."""

from typing import Any

import msgspec
from starlette.responses import Response

from headrace.core.errors import Busy, HeadraceError
from headrace.net.replies import error_json, status_of


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def error_response(error: HeadraceError) -> Response:
    """`error` as an answer, with the time to wait where waiting helps."""
    headers = {"retry-after": f"{error.retry_after_s:.0f}"} if isinstance(error, Busy) else None
    return json_response(error_json(error), status_of(error)[0], headers)
