"""What no server should be sent, and what it has to say to it. See `test_hostile`."""

import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MARKER = "MARKER-xyzzy"
"""Part of every prompt; must not be in any log."""
USER = {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 3}


@dataclass(frozen=True)
class Case:
    name: str
    raw: bytes
    status: int
    says: str = ""
    """Part of the answer, its head included."""


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def sent(raw: bytes, *headers: str, path: str = CHAT, version: str = "1.1", length: object = None) -> bytes:
    size = len(raw) if length is None else length
    lines = (f"POST {path} HTTP/{version}", "Host: x", "Connection: close", f"Content-Length: {size}")
    return head(*lines, *headers) + raw


def chunked(*parts: bytes, headers: tuple[str, ...] = (), version: str = "1.1", end: bytes = b"") -> bytes:
    lines = (f"POST {CHAT} HTTP/{version}", "Host: x", "Connection: close", "Transfer-Encoding: chunked")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head(*lines, *headers) + chunks + (end or b"0\r\n\r\n")


def asked(method: str, path: str, *headers: str, version: str = "1.1") -> bytes:
    return head(f"{method} {path} HTTP/{version}", "Host: x", "Connection: close", *headers)


def body(**changes: Any) -> bytes:
    return json.dumps(USER | changes).encode()


def member(text: str) -> bytes:
    """A good body with one more member, as text."""
    return body()[:-1] + b", " + text.encode() + b"}"


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


GOOD = body()
HUGE = "1" + "0" * 5000
"""More digits than Python's int() takes."""

FRAMING = (
    Case("chunked", chunked(GOOD[:10], GOOD[10:]), 200),
    Case("chunk by chunk of one byte", chunked(*(bytes([each]) for each in GOOD)), 200),
    Case("10,000 chunks of one byte", chunked(*[b" "] * 10_000, GOOD), 200),
    Case("20,000 chunks of one byte", chunked(*[b" "] * 20_000, GOOD), 400, "send larger ones"),
    Case("20,000 chunks of 64 bytes", chunked(*[b" " * 64] * 20_000), 413, "no prompt that fits"),
    Case("chunked with a trailer", chunked(GOOD, end=b"0\r\nX-Trailer: a\r\n\r\n"), 200),
    Case("no size of a chunk", chunked(end=b"zz\r\n"), 400, "illegal chunk header"),
    Case("no size after a chunk", chunked(GOOD[:9], end=b"ZZZ\r\n"), 400, "illegal chunk header"),
    Case("a negative size", chunked(end=b"-1\r\n"), 400, "illegal chunk header"),
    Case("a size without end", chunked(end=b"f" * 40 + b"\r\n"), 400, "illegal chunk header"),
    Case(
        "a bad chunk to a route that takes no body",
        asked("GET", "/v1/models", "Transfer-Encoding: chunked") + b"ZZZ\r\n",
        400,
    ),
    Case("both lengths", chunked(GOOD, headers=("Content-Length: 5",)), 400, "no certain end"),
    Case("both lengths, the other way", sent(GOOD, "Transfer-Encoding: chunked"), 400),
    Case("chunked in HTTP/1.0", chunked(GOOD, version="1.0"), 400, "no certain end"),
    Case("chunked twice", chunked(GOOD, headers=("Transfer-Encoding: chunked",)), 501),
    Case("another encoding", asked("POST", CHAT, "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
    Case("one length twice", sent(GOOD, f"Content-Length: {len(GOOD)}"), 200),
    Case("two different lengths", sent(GOOD, "Content-Length: 3"), 400, "conflicting Content-Length"),
    Case("a list of lengths", sent(GOOD, length=f"{len(GOOD)}, 3"), 400),
    Case("a negative length", sent(GOOD, length=-1), 400, "bad Content-Length"),
    Case("a length with a sign", sent(GOOD, length="+5"), 400),
    Case("a length in hexadecimal", sent(GOOD, length="0x5"), 400),
    Case("a length of 30 digits", sent(GOOD, length="9" * 30), 400),
    Case("an enormous length", sent(GOOD, length=10**18), 413, "no prompt that fits"),
    Case("a length too short", sent(GOOD, length=len(GOOD) - 5), 400, "not valid JSON"),
    Case("an expectation", sent(GOOD, "Expect: 100-continue"), 100, "200 OK"),
    Case("another expectation", sent(GOOD, "Expect: 200-ok"), 200),
    Case("HTTP/1.0", sent(GOOD, version="1.0"), 200),
    Case("HTTP/1.0, streamed", sent(body(stream=True), version="1.0"), 200, "data: [DONE]"),
    Case("HTTP/0.9", b"GET /health\r\n\r\n", 400, "illegal request line"),
    Case("HTTP/2 at once", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404),
    Case("no host", head("GET /health HTTP/1.1"), 400, "Host"),
    Case("two hosts", asked("GET", "/health", "Host: y"), 400, "Host"),
    Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300 + b"\r\n\r\n", 400),
    Case("5,000 headers", sent(GOOD, *(f"X-{number}: {'a' * 50}" for number in range(5000))), 431),
    Case("a line without end", b"GET /" + b"a" * 200_000, 431),
    Case("a header line that goes on", sent(GOOD, "X: a", "  b"), 200),
    Case("a space before the colon", sent(GOOD, "X : a"), 400, "illegal header line"),
    Case("NUL in a header", sent(GOOD, "X: a\0b"), 400, "illegal header line"),
    Case("an id that is not ASCII", sent(GOOD, "X-Request-Id: \xe9\xff"), 200),
    Case("a body that says it is compressed", sent(GOOD, "Content-Encoding: gzip"), 200),
    Case("two requests in one go", sent(GOOD).replace(b"Connection: close\r\n", b"") + sent(GOOD), 200),
    Case("a form", sent(b"--a\r\n\r\n--a--", "Content-Type: multipart/form-data; boundary=a"), 400),
)

JSON = (
    Case("NUL in a prompt", sent(body(prompt="a\0b" + MARKER), path=COMPLETION), 200),
    Case("NUL after a body", sent(GOOD + b"\0"), 400),
    Case("1e400", sent(member('"temperature": 1e400')), 400, "temperature"),
    Case("1e400 in a field unknown", sent(member('"zz": 1e400')), 200),
    Case("1e-400", sent(member('"temperature": 1e-400')), 200),
    Case("NaN", sent(member('"temperature": NaN')), 400),
    Case("Infinity", sent(member('"top_p": Infinity')), 400),
    Case("-0.0 tokens", sent(body(max_tokens=-0.0)), 400, "max_tokens"),
    *(
        Case(f"5,000 digits of {name}", sent(member(f'"{name}": {HUGE}')), 400, name)
        for name in ("max_tokens", "seed", "temperature", "top_k", "n", "priority", "logit_bias")
    ),
    Case("1,000 digits", sent(member(f'"min_tokens": {HUGE[:1000]}')), 400, "min_tokens"),
    Case("5,000 digits in a field unknown", sent(member(f'"zz": {HUGE}')), 200),
    Case("5,000 digits for the template", sent(member(f'"chat_template_kwargs": {{"z": {HUGE}}}')), 400),
    Case("5,000 digits beside a mistake", sent(member(f'"top_p": "a", "top_k": {HUGE}')), 400),
    Case("a token of 5,000 digits", sent(f'{{"prompt": [{HUGE}]}}'.encode(), path=COMPLETION), 400),
    Case("a member twice", sent(member('"max_tokens": 2')), 200, '"completion_tokens":2'),
    Case("a lone surrogate", sent(GOOD.replace(b"xyzzy", b"\\ud800")), 400),
    Case("a lone surrogate in a name", sent(member('"\\ud800": 1')), 400),
    Case("a lone surrogate to stop at", sent(member('"stop": "\\udfff"')), 400),
    Case("no UTF-8", sent(GOOD.replace(b"xyzzy", b"\xff")), 400, "utf-8"),
    Case("no UTF-8 in a name", sent(member('"zz": 1').replace(b"zz", b"z\xfe")), 400, "utf-8"),
    Case("no UTF-8 in a field unknown", sent(member('"zz": "y"').replace(b"y", b"\xff")), 400),
    Case("no UTF-8 in place of content", sent(GOOD.replace(b"content", b"c\xff\xfentent")), 400),
    Case("overlong UTF-8", sent(GOOD.replace(b"xyzzy", b"\xc0\xaf")), 400),
    Case("a byte order mark", sent(b"\xef\xbb\xbf" + GOOD), 200),
    Case("UTF-16", sent(GOOD.decode().encode("utf-16")), 400),
    Case("deep in a field unknown", sent(member('"x": ' + "[" * 50_000 + "]" * 50_000)), 400, "deeply"),
    Case("deep and cut off", sent(b'{"messages":' + b"[" * 100_000), 400),
    Case("deep for the template", sent(member(f'"chat_template_kwargs": {nested(900)}')), 200),
    Case("a deep schema", sent(member(f'"structured_outputs": {{"json": {nested(900)}}}')), 400),
    Case("a deep tool", sent(member(f'"tools": [{nested(20_000)}]')), 400),
    Case("trailing text", sent(GOOD + b"x"), 400),
    Case("a comment", sent(b"/* x */" + GOOD), 400),
    Case("one quote for two", sent(GOOD.replace(b'"', b"'")), 400),
)

VALUES = (
    Case("the marker as a model", sent(body(model=MARKER)), 404),
    Case("the marker as a name", sent(body(**{MARKER: 1})), 200),
    Case("the marker as a role", sent(body(messages=[{"role": MARKER, "content": MARKER}])), 200),
    Case("the marker in a wrong place", sent(body(stop=[[MARKER]])), 400, "stop"),
    Case("the marker in a bad expression", sent(body(structured_outputs={"regex": MARKER + "("})), 400),
    Case("the marker in a bad grammar", sent(body(structured_outputs={"grammar": MARKER + " ::= ("})), 400),
    Case("the marker in a bad schema", sent(body(structured_outputs={"json": {"type": MARKER}})), 400),
    Case("the marker as a wrong type", sent(body(messages=[{"role": "user", "content": {MARKER: 1}}])), 400),
    Case("the marker too long", sent(body(messages=[{"role": "user", "content": MARKER * 500}])), 400, "512"),
    Case("the marker as a template", sent(body(chat_template="{{ '" + MARKER + "'.x.y }}")), 400),
    Case("the marker in a header", sent(GOOD, f"X-Request-Id: {MARKER}"), 200, MARKER),
    Case("the marker as a tool", sent(body(tools=[{"type": "function", "function": {"name": MARKER}}])), 200),
)  # fmt: skip

PATHS = (
    Case("dots", asked("GET", "/health/../v1/models"), 404),
    Case("dots in disguise", asked("GET", "/%2e%2e/v1/models"), 404),
    Case("NUL in a path", asked("GET", "/v1/models%00"), 404),
    Case("a path that is no UTF-8", asked("GET", "/%ff%fe"), 404),
    Case("a path that is not ASCII", asked("GET", "/\xe9"), 400),
    Case("two slashes", asked("GET", "//v1/models"), 404),
    Case("a slash too many", asked("GET", "/v1/models/"), 307),
    Case("a whole address", asked("GET", "http://x/v1/models"), 200, '"object":"list"'),
    Case("a whole address, another's", asked("GET", "HTTPS://user@y:8000/version?a=b"), 200),
    Case("a whole address without a path", asked("GET", "http://x"), 404, "there is no / here"),
    Case("a whole address of another kind", asked("GET", "ftp://x/v1/models"), 404),
    Case("an asterisk", asked("OPTIONS", "*"), 404),
    Case("a tunnel", asked("CONNECT", "x:443"), 404),
    Case("TRACE", asked("TRACE", "/health"), 405, "does not take TRACE"),
    Case("a method that nobody knows", asked("BREW", "/v1/models"), 405),
    Case("a method in small letters", asked("get", "/v1/models"), 405),
    Case("HEAD", asked("HEAD", "/v1/models"), 200),
    Case("a web socket", asked("GET", "/health", "Connection: upgrade", "Upgrade: websocket"), 200),
    Case("HTTP/2 offered", asked("GET", "/health", "Connection: Upgrade", "Upgrade: h2c"), 200),
    Case("a long path", asked("GET", "/" + "a" * 50_000), 404),
)

CASES = FRAMING + JSON + VALUES + PATHS
