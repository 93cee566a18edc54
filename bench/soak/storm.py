"""Rounds of a soak: clients come as the script says, the engine is killed, then all is counted.

Script --play--> Round: outcomes judged, recoveries, what was still held when nobody was there
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from bench.soak.client import Outcome, make_visit
from bench.soak.judge import Away, Fault, Kind, judge, parse
from bench.soak.requests import Visit
from bench.soak.script import STALL_S, Due, Script
from bench.soak.server import BACK_WITHIN_S, REQUEST_TIMEOUT_S, Footprint, SoakedServer

HUNG_AFTER_S = REQUEST_TIMEOUT_S + STALL_S / 2
"""Every request has an end by then; a body that stalls is given STALL_S first."""


GOOD = ("good", "good, answer known", "reads slowly")


@dataclass(slots=True)
class Tally:
    """All rounds so far."""

    by_visit: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """By kind of visit: how often it ended how; a status, or "left"."""
    faults: list[tuple[str, Fault]] = field(default_factory=list[tuple[str, Fault]])
    recoveries_s: list[float] = field(default_factory=list[float])
    kills: int = 0
    leaked_blocks: int = 0
    footprints: list[Footprint] = field(default_factory=list[Footprint])

    @property
    def requests(self) -> int:
        return sum(counter.total() for counter in self.by_visit.values())

    @property
    def leaked_descriptors(self) -> int:
        """Beyond those of the first time that nobody was there."""
        first, *later = [footprint.descriptors for footprint in self.footprints]
        return max(0, *(each - first for each in later)) if later else 0

    def good(self, end: str | None = None) -> int:
        """Good requests that came outside bursts and stayed; with `end`, those that ended so."""
        counters = [self.by_visit.get(name, Counter[str]()) for name in GOOD]
        return sum(counter[end] if end else counter.total() for counter in counters)

    def count(self, kind: Kind) -> int:
        return sum(fault.kind is kind for _, fault in self.faults)

    def add(self, visit: Visit, outcome: Outcome, fault: Fault | None) -> None:
        answer = parse(bytes(outcome.received))
        end = str(answer.status) if answer else "left" if outcome.left else "closed"
        self.by_visit.setdefault(visit.name, Counter())[end] += 1
        if fault:
            self.faults.append((visit.name, fault))


async def play(script: Script, server: SoakedServer, tally: Tally) -> None:
    """Run `script` to its end and wait until the server is idle. Adds to `tally`."""
    began_at = time.monotonic()
    away: list[Away] = []
    async with asyncio.TaskGroup() as tasks:
        killing = tasks.create_task(_kill(script, server, began_at, tally, away))
        visiting = [tasks.create_task(_come(due, server, began_at)) for due in script.visits]
    assert killing.done(), "the group has waited for it"
    for due, visited in zip(script.visits, visiting, strict=True):
        outcome = visited.result()
        tally.add(due.visit, outcome, judge(due.visit, outcome, away, REQUEST_TIMEOUT_S))
    if not server.has_ended:
        tally.leaked_blocks += await asyncio.to_thread(server.leaked_blocks)
        tally.footprints.append(server.footprint())


async def _come(due: Due, server: SoakedServer, began_at: float) -> Outcome:
    await asyncio.sleep(max(0.0, began_at + due.at_s - time.monotonic()))
    return await make_visit(due.visit, server.host, server.port, HUNG_AFTER_S)


async def _kill(
    script: Script, server: SoakedServer, began_at: float, tally: Tally, away: list[Away]
) -> None:
    for at_s in script.kills_at_s:
        await asyncio.sleep(max(0.0, began_at + at_s - time.monotonic()))
        killed_at = time.monotonic()
        recovery_s = await asyncio.to_thread(server.kill_engine)
        tally.kills += 1
        away.append(Away(killed_at, time.monotonic()))
        if recovery_s is None:
            fault = Fault(Kind.HUNG, f"no engine within {BACK_WITHIN_S:.0f} s of a kill")
            tally.faults.append(("kill", fault))
        else:
            tally.recoveries_s.append(recovery_s)
