"""Is the first request as fast as those that follow?

    python -m bench.warm --kinds schema tools --json

A fresh `headrace serve smollm2` for each kind of request, several times over:
one request, then eight more of the same kind, one at a time, each with a text
(and schema, expression, tool) of its own. All answers have as many tokens.

    server --9 requests--> Visit --shares--> first / median of the rest

TTFT is the time to the first bytes of the body: the first token where the
answer is streamed. Processor time is that of all the server's processes (Linux
counts it by thread): others who use the machine move it by a few percent, and
times by any factor. `start` is from the command to the open port.

    a table, then as the last line:
    {"kinds": {kind: {"ttft": {...}, "total": {...}, "cpu": {...}}}, ...}
"""

import argparse
import contextlib
import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from urllib.parse import urlsplit

from headrace.targets.embedded import EmbeddedServer
from headrace.workload.words import WORDS

MODEL = "smollm2"
FOLLOWING = 8
TOKENS = 16
SHORT_WORDS, LONG_WORDS = 20, 1450
"""With what the chat template adds, the long prompt has some 1,500 tokens."""
TIMEOUT_S = 120.0
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

Body = Mapping[str, object]
Draw = Callable[[Random], Body]
"""What a request of some kind has beside its prompt."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request."""

    draw: Draw = lambda _: {}
    words: int = SHORT_WORDS
    streamed: bool = True
    path: str = CHAT

    def body(self, chance: Random) -> dict[str, object]:
        """Every answer has as many tokens as it may: a grammar has to be long enough for that."""
        text = _text(chance, self.words)
        prompt = {"prompt": text} if self.path == COMPLETIONS else {"messages": [_message(text)]}
        return {
            **prompt,
            "model": MODEL,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": self.streamed,
            **({"stream_options": {"include_usage": True}} if self.streamed else {}),
            **self.draw(chance),
        }


@dataclass(frozen=True, slots=True)
class Answered:
    """What one request took."""

    ttft_s: float
    total_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Visit:
    """One fresh server and one kind: the first request, and those after it."""

    start_s: float
    first: Answered
    following: Sequence[Answered]


@dataclass(frozen=True, slots=True)
class Share:
    """Medians over the servers, and the first request as a multiple of the median of the rest."""

    first_s: float
    rest_s: float
    ratio: float
    least: float
    most: float


def main() -> None:
    options = parse_options()
    visits: dict[str, list[Visit]] = {kind: [] for kind in options.kinds}
    for turn in range(options.servers):
        for kind in options.kinds:
            visits[kind].append(visit(KINDS[kind], Random(f"{kind}/{turn}")))
            print(f"  {kind}, server {turn + 1} of {options.servers}", file=sys.stderr, flush=True)
    print_table(visits)
    if options.json:
        print(json.dumps(as_json(visits)))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.warm", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=3, help="fresh servers a kind (default 3)")
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS,), default=(*KINDS,), metavar="KIND")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    return parser.parse_args()


def visit(kind: Kind, chance: Random) -> Visit:
    began_s = time.monotonic()
    with EmbeddedServer(MODEL, {}) as server:
        start_s = time.monotonic() - began_s
        answered = [ask(server, kind, kind.body(chance)) for _ in range(1 + FOLLOWING)]
    return Visit(start_s, answered[0], answered[1:])


def ask(server: EmbeddedServer, kind: Kind, body: Body) -> Answered:
    """On a connection of its own. Exits where the answer has not all the tokens that it was to have."""
    before_s = session_cpu_s(server.session)
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=TIMEOUT_S)
    began_s = time.monotonic()
    connection.request("POST", kind.path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    beginning = response.read1()
    ttft_s = time.monotonic() - began_s
    answer = beginning + response.read()
    total_s = time.monotonic() - began_s
    connection.close()
    cpu_s = session_cpu_s(server.session) - before_s
    expected = TOKENS * int(str(body.get("n", 1)))
    if response.status != http.HTTPStatus.OK or output_tokens(answer, kind.streamed) != expected:
        sys.exit(
            f"not {expected} tokens with status 200, but {response.status}: "
            f"{answer[-500:].decode(errors='replace')}"
        )
    return Answered(ttft_s, total_s, cpu_s)


def session_cpu_s(session: int) -> float:
    """What the threads that a session has now have worked so far."""
    worked_ns = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _session_of(process) == session:
            for thread in (process / "task").iterdir():
                with contextlib.suppress(OSError):  # it has ended
                    worked_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return worked_ns / 1e9


def _session_of(process: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return os.getsid(int(process.name))
    return None


def output_tokens(answer: bytes, streamed: bool) -> int:
    """As the answer's usage says: in a stream, the last event before its end."""
    told = answer.strip().split(b"\n\n")[-2].removeprefix(b"data: ") if streamed else answer
    return json.loads(told)["usage"]["completion_tokens"]


def shares(visits: Sequence[Visit]) -> dict[str, Share]:
    """By what was measured."""
    return {
        "ttft": share_of([(v.first.ttft_s, [each.ttft_s for each in v.following]) for v in visits]),
        "total": share_of([(v.first.total_s, [each.total_s for each in v.following]) for v in visits]),
        "cpu": share_of([(v.first.cpu_s, [each.cpu_s for each in v.following]) for v in visits]),
    }


def share_of(servers: Sequence[tuple[float, Sequence[float]]]) -> Share:
    """Of each server, what the first request took and what the others did."""
    ratios = [first / median(rest) for first, rest in servers]
    return Share(
        first_s=median(first for first, _ in servers),
        rest_s=median(median(rest) for _, rest in servers),
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
    )


def start_s(visits: Mapping[str, Sequence[Visit]]) -> float:
    return median(each.start_s for of_kind in visits.values() for each in of_kind)


def print_table(visits: Mapping[str, Sequence[Visit]]) -> None:
    print("first: median over the servers, ms; x: first / median of the rest (least-most)")
    print(f"{'':<16} {'TTFT':>6} {'x':>4} {'':<10} {'total':>6} {'x':>4} {'':<10} {'CPU':>6} {'x':>4}")
    for kind, of_kind in visits.items():
        print(f"{kind:<16} {columns(shares(of_kind))}")
    print(f"start: {start_s(visits):.2f} s, median of {sum(map(len, visits.values()))}")


def columns(found: Mapping[str, Share]) -> str:
    ttft, total, cpu = found["ttft"], found["total"], found["cpu"]
    return (
        f"{ttft.first_s * 1e3:>6.0f} {ttft.ratio:>4.2f} {f'({ttft.least:.2f}-{ttft.most:.2f})':<11}"
        f"{total.first_s * 1e3:>6.0f} {total.ratio:>4.2f} {f'({total.least:.2f}-{total.most:.2f})':<11}"
        f"{cpu.first_s * 1e3:>6.0f} {cpu.ratio:>4.2f}"
    )


def as_json(visits: Mapping[str, Sequence[Visit]]) -> dict[str, object]:
    return {
        "kinds": {
            kind: {name: asdict(share) for name, share in shares(of_kind).items()}
            for kind, of_kind in visits.items()
        },
        "start_s": start_s(visits),
        "visits": {kind: [asdict(each) for each in of_kind] for kind, of_kind in visits.items()},
    }


def _text(chance: Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _schema(chance: Random) -> dict[str, object]:
    """An object with an enumeration, a bounded number, a list and a text: some of what people ask for."""
    name, number, items, text = chance.sample(WORDS, 4)
    return {
        "type": "object",
        "properties": {
            name: {"enum": [f"the {a} and the {b} of all" for a, b in _pairs(chance)]},
            number: {"type": "integer", "minimum": chance.randrange(100), "maximum": 10_000},
            items: {"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 9},
            text: {"type": "string", "minLength": 200},
        },
        "required": [name, number, items, text],
        "additionalProperties": False,
    }


def _pairs(chance: Random) -> list[tuple[str, str]]:
    return [(chance.choice(WORDS), chance.choice(WORDS)) for _ in range(4)]


def _json_schema(chance: Random) -> Body:
    named = {"name": chance.choice(WORDS), "schema": _schema(chance), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _regex(chance: Random) -> Body:
    one, other = chance.sample(WORDS, 2)
    return {"structured_outputs": {"regex": f"({one}|{other}): [a-z ]{{200,300}}[0-9]+(, [A-Z][a-z]+){{2}}"}}


def _tools(chance: Random) -> Body:
    functions = [
        {"name": f"get_{name}", "description": _text(chance, 8), "parameters": _schema(chance)}
        for name in chance.sample(WORDS, 2)
    ]
    return {
        "tools": [{"type": "function", "function": each} for each in functions],
        "tool_choice": "required",
    }


KINDS: Mapping[str, Kind] = {
    "chat": Kind(),
    "chat, whole": Kind(streamed=False),
    "schema": Kind(_json_schema),
    "schema, whole": Kind(_json_schema, streamed=False),
    "regex": Kind(_regex),
    "tools": Kind(_tools),
    "tools, whole": Kind(_tools, streamed=False),
    "logprobs": Kind(lambda _: {"logprobs": True, "top_logprobs": 20}),
    "prompt_logprobs": Kind(lambda _: {"prompt_logprobs": 20}, 100, streamed=False, path=COMPLETIONS),
    "n 4": Kind(lambda _: {"n": 4}),
    "n 4, whole": Kind(lambda _: {"n": 4}, streamed=False),
    "long": Kind(words=LONG_WORDS),
}


if __name__ == "__main__":
    main()
