"""Takes in the body of a request, whatever its size and however long it takes."""

import codecs

from starlette.datastructures import Headers
from starlette.types import Receive

from headrace.net.fields import BodyTooLarge
from headrace.net.generation import ClientGone

BODY_BYTES_PER_TOKEN = 256
SMALLEST_BODY_LIMIT = 1 << 20
"""A body over `max_model_len` times the one, or this if that is less, cannot hold a prompt that fits."""
MOST_DISCARDED_BYTES = 1 << 26


def most_body_bytes(max_model_len: int) -> int:
    return max(SMALLEST_BODY_LIMIT, BODY_BYTES_PER_TOKEN * max_model_len)


async def read_body(headers: Headers, receive: Receive, most_bytes: int) -> bytes:
    """The whole body, without the mark that some clients on Windows put before UTF-8.

    Raises `BodyTooLarge`, or `ClientGone` when it does not come to its end.

    What is too large is still read (up to a bound) and thrown away: a connection closed with
    unread bytes in it takes our answer along.
    """
    announced = int(headers.get("content-length", "0"))
    parts: list[bytes] = []
    size, more = 0, True
    while more and max(size, announced) <= MOST_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= most_bytes:
            parts.append(part)
        more = message.get("more_body", False)
    if more or size > most_bytes:
        raise BodyTooLarge(
            f"the body has more than {most_bytes} bytes, and no prompt that fits needs so many",
            "shorten the prompt",
        )
    return b"".join(parts).removeprefix(codecs.BOM_UTF8)
