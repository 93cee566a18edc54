"""Work of the CPU that numbers show though nobody watched a core: requests added slower than they are
computed, probabilities that are asked for with each token.
"""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.rules.support import fact, said, start_failed

FALLS_TO = 0.7
"""Of the rate with few of them."""


def added_slower_than_computed(e: Evidence) -> Iterator[Finding]:
    """An offline run prints how fast it adds requests (template, tokenizer, images: the CPU) and how fast it
    computes them.
    """
    adds, computes = e.of("adding_requests")[-1:], e.of("processed_prompts")[-1:]
    if not adds or not computes or start_failed(e):
        return
    added, computed = adds[0].number("it_s") or 0.0, computes[0].number("it_s") or 0.0
    if 0 < added < 0.5 * computed:
        yield Finding(
            Label.CPU,
            f"Requests are added at {added:,.0f} a second and computed at {computed:,.0f}: preparing them "
            f"takes the time",
            (said(adds[0]), said(computes[0])),
            Advice(
                "preprocess in several processes (images made smaller before, token ids instead of text), "
                "OMP_NUM_THREADS 1 for each",
                f"up to {computed / added:.0f} times",
                "cores",
                "'Adding requests' as fast as 'Processed prompts'",
            ),
            Severity.WARNING,
            0.8,
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
        )


def asks_for_probabilities(e: Evidence) -> Iterator[Finding]:
    """Log probabilities of many tokens are gathered, decoded and written by the CPU, for every token made."""
    asked = next(
        (r for r in e.under("sweep:") if re.search(r"log_?probs", r.name) and len(r.numbers) > 1), None
    )
    rates = [
        r for r in e.under("sweep:") if re.search(r"tok(?:ens?)?_(?:per_)?s|throughput|req_s|rps", r.name)
    ]
    if asked is None or start_failed(e):
        return
    for rate in rates:
        few, many = rate.numbers[0], rate.numbers[-1]
        if asked.numbers[-1] > asked.numbers[0] and 0 < many < FALLS_TO * few:
            yield Finding(
                Label.CPU,
                f"From {asked.numbers[0]:g} to {asked.numbers[-1]:g} log probabilities a token "
                "the rate falls "
                f"from {few:g} to {many:g}: the CPU puts them together",
                (fact(e, asked.name), Fact(f"{rate.name}: {rate.text[:80]}", rate.where)),
                Advice(
                    "ask for as few as are read (--max-logprobs as a bound); whole vocabularies "
                    "belong into an "
                    "offline run",
                    f"{few:g} tokens a second",
                    "none",
                    "the same load without logprobs",
                ),
                Severity.WARNING,
                0.8,
                explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.MEMORY_BANDWIDTH}),
            )
            return


_OPEN = re.compile(r"in_?flight|open_requests|outstanding|pending_requests|open_connections")
_MEDIA = re.compile(r"image|video|audio|pdf|pixel|frames")
MANY, HARDLY = 8, 0.5


def held_before_the_engine(e: Evidence) -> Iterator[Finding]:
    """A client's open requests are in the engine (running, waiting) or not yet: on the way, or in the front
    end, where images are fetched, decoded and resized before the engine hears of them.
    """
    opened = next((r for r in e.under("client:") if r.last and _OPEN.search(r.name)), None)
    load, told = load_of(e), " ".join(f"{r.name} {r.text}" for r in e.under("workload:")).lower()
    if opened is None or not load.waiting or not _MEDIA.search(told) or start_failed(e):
        return
    number = opened.last or 0.0
    if number < MANY or load.peak_waiting + load.peak_running > HARDLY * number:
        return
    yield Finding(
        Label.CPU,
        f"{number:,.0f} requests are open at the client and {load.peak_waiting:,.0f} wait in the engine: the "
        "others are in the front end, which prepares their images",
        (fact(e, opened.name), *(fact(e, n) for n in load.names.values() if n in e.readings)),
        Advice(
            "--api-server-count 4, images made smaller before they are sent, "
            "--mm-processor-kwargs with fewer pixels",
            "running follows the requests that are open",
            "cores and host memory for each process",
            "CPU use by process while running climbs",
        ),
        Severity.WARNING,
        0.7,
        rivals=("a proxy or a connection limit on the way: ask the server directly",),
        explains=frozenset({Label.UNDETERMINED, Label.COMPUTE, Label.CLIENT}),
    )


RULES = (held_before_the_engine, added_slower_than_computed, asks_for_probabilities)
