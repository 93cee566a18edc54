"""What breaks when everything goes wrong at once: `python -m bench.soak --minutes 5 --json`.

A real server on the loopback under random load from a seed: clients that leave before, at and
after the first token, that read slowly, that send half a body, too much, nonsense, deep JSON, wrong
values, wrong keys, prompts that never fit; ten times more at once than is let in; the engine's
process killed now and then. Between them good requests, whose answers are checked.

    hung                requests without an end within the bound
    leaked_blocks       KV blocks (or requests) still held when nobody is there, over all rounds
    leaked_descriptors  file descriptors of the HTTP process beyond those before the first round
    wrong_status        an answer that this request must not get, or none
    wrong_answers       200, but not the text, the tokens or the end it had to have

a line a round, tables, then with --json as the last line: {"hung": 0, "leaked_blocks": 0, ...}.
Exit code 1 if one of the five is not zero. Linux only.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from bench.soak.judge import Kind
from bench.soak.script import STALL_S, make_script
from bench.soak.server import HEADRACE, PLACES, SCRIPTED, SoakedServer
from bench.soak.storm import Tally, play

ROUND_S = 60.0
QUICK_ROUND_S = 30.0
MOST_FAULTS_SHOWN = 20
MUST_BE_ZERO = ("hung", "leaked_blocks", "leaked_descriptors", "wrong_status", "wrong_answers")

console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="rounds begin for so long  [5]")
    parser.add_argument(
        "--quick", action="store_true", help="one round of 30 s, and nobody stalls for a minute"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--scripted", action="store_true", help="no model: an executor that checks every block table"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args()
    program = SCRIPTED if options.scripted else HEADRACE
    with SoakedServer("scripted" if options.scripted else options.model, program) as server:
        tally = soak(server, options.seed, 0.0 if options.quick else 60 * options.minutes)
    show(tally)
    result = summary(tally)
    if options.json:
        print(json.dumps(result))
    return 1 if any(result[name] for name in MUST_BE_ZERO) else 0


def soak(server: SoakedServer, seed: int, length_s: float) -> Tally:
    """At least one round; the last one begins so that its load ends within `length_s`."""
    chance, tally, began_at = random.Random(seed), Tally(), time.monotonic()
    facts = server.facts()
    tally.footprints.append(server.footprint())
    number = 0
    round_s = ROUND_S if length_s else QUICK_ROUND_S
    while True:
        number += 1
        stalls = number == 1 and length_s >= round_s + 2 * STALL_S
        script = make_script(facts, chance, round_s, PLACES, stalls=stalls)
        asyncio.run(play(script, server, tally))
        _progress(number, time.monotonic() - began_at, tally)
        if server.has_ended or time.monotonic() - began_at + round_s > length_s:
            return tally


def summary(tally: Tally) -> dict[str, int | float | None]:
    first, last = tally.footprints[0], tally.footprints[-1]
    return {
        "hung": tally.count(Kind.HUNG),
        "leaked_blocks": tally.leaked_blocks,
        "leaked_descriptors": tally.leaked_descriptors,
        "wrong_status": tally.count(Kind.WRONG_STATUS),
        "wrong_answers": tally.count(Kind.WRONG_ANSWER),
        "requests": tally.requests,
        "good": tally.good(),
        "good_answered": tally.good("200"),
        "kills": tally.kills,
        "recovery_s_max": round(max(tally.recoveries_s), 2) if tally.recoveries_s else None,
        "server_mib_first": round(first.server_mib, 1),
        "server_mib_last": round(last.server_mib, 1),
        "descriptors_first": first.descriptors,
        "descriptors_last": last.descriptors,
    }


def show(tally: Tally) -> None:
    table = Table("visit", "requests", "how it ended", title="What came, and what became of it", box=None)
    for name, ends in sorted(tally.by_visit.items()):
        table.add_row(
            name, f"{ends.total():,}", ", ".join(f"{end}: {times:,}" for end, times in ends.most_common())
        )
    console.print()
    console.print(table)
    console.print(f"\ngood requests outside bursts: {tally.good():,}, answered: {tally.good('200'):,}")
    recoveries = ", ".join(f"{each:.1f}" for each in tally.recoveries_s)
    console.print(f"kills {tally.kills}; seconds until an engine took requests again: {recoveries or '-'}")
    for name in ("server_mib", "engine_mib", "descriptors"):
        values = " ".join(f"{getattr(each, name):,.0f}" for each in tally.footprints)
        console.print(f"{name} when idle, before and after each round: {values}")
    _show_faults(tally)


def _show_faults(tally: Tally) -> None:
    faults = Counter((name, fault.kind.value, fault.what) for name, fault in tally.faults)
    for (name, kind, what), times in faults.most_common(MOST_FAULTS_SHOWN):
        console.print(f"{kind}, {times} times: {name}: {what}", markup=False)
    if len(faults) > MOST_FAULTS_SHOWN:
        console.print(f"and {len(faults) - MOST_FAULTS_SHOWN} more")
    if tally.leaked_descriptors:
        console.print(f"{tally.leaked_descriptors} file descriptors more than at first when nobody was there")
    if tally.leaked_blocks:
        console.print(f"{tally.leaked_blocks} blocks were still held when nobody was there")


def _progress(number: int, elapsed_s: float, tally: Tally) -> None:
    console.print(
        f"round {number:>2}  {elapsed_s:4.0f} s  requests {tally.requests:>6,}  kills {tally.kills:>2}  "
        f"leaked {tally.leaked_blocks}  faults {len(tally.faults)}"
    )


if __name__ == "__main__":
    sys.exit(main())
