"""Tables and the JSON line of what a `Record` holds.

A ratio is the median over rounds of ours through theirs in the same round; spread is half the distance
between the quartiles, as a share of the median. Percentiles are over all requests, or all gaps between
tokens, of all rounds.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from statistics import median
from typing import Any

import numpy as np

from bench.engine.in_process import THEIRS
from bench.engine.load import MIXED, POINTS
from bench.engine.record import OURS, Place, Record, Shares, Visit
from bench.engine.servers import OUR_PRECISION, Contender, processors
from headrace.measure.neighbours import DISTURBED_CORES
from headrace.measure.summary import percentiles
from headrace.workload.mixed import LONG, SHORT


def print_tables(record: Record, servers: Sequence[Contender]) -> None:
    precision = {THEIRS: OUR_PRECISION} | {each.name: each.precision for each in servers}
    print(f"\n{len(processors())} threads. What each computes with:\n")
    for name, said in precision.items():
        print(f"  {name}: {said}")
    for place, names in _places(servers).items():
        print(f"\n{_TITLES[place]}\n")
        print(f"{'at once':>7} {'':<17}{'tokens/s':>15}{'ours through':>15}{'TTFT ms':>13}{'ITL ms':>13}")
        print(f"{'':>7} {'':<17}{'':>15}{'theirs':>15}{'P50   P95':>13}{'P50   P95':>13}")
        for point in POINTS:
            for name in names:
                if visits := record.of(place, name, point):
                    print(_row(record, place, point, name, visits))
    for server in servers:
        if server.absent:
            print(f"\n{server.name} is absent: {server.absent}")
    _print_shares(record)


_TITLES = {
    Place.IN_PROCESS: "In one process, median of the rounds (spread); TTFT of the mix: its short class",
    Place.HTTP: "Over HTTP, median of the rounds (spread); TTFT of the mix: its short class",
}


def _places(servers: Sequence[Contender]) -> dict[Place, list[str]]:
    return {Place.IN_PROCESS: [OURS, THEIRS], Place.HTTP: [each.name for each in servers]}


def _row(record: Record, place: Place, point: str, name: str, visits: Sequence[Visit]) -> str:
    rates = [visit.tokens_per_s for visit in visits]
    ratios = [] if name.startswith(OURS) else ratios_of(record, place, name, point)
    cells = [f"{median(rates):.1f}{_bracketed(rates)}", ""]
    if ratios:
        cells[1] = f"{median(ratios):.2f}{_bracketed(ratios)}"
    timed = [percentiles(_ttft_ms(visits)), percentiles(_itl_ms(visits))]
    times = [f"{each.p50:.0f} {each.p95:6.0f}" if each else "" for each in timed]
    noted = "".join(f"  {each}" for each in _notes(record, place, name, point))
    return f"{point:>7} {name:<17}{cells[0]:>15}{cells[1]:>15}{times[0]:>13}{times[1]:>13}{noted}"


def _bracketed(values: Sequence[float]) -> str:
    """One round has no spread."""
    return f" (±{spread(values):.0%})" if len(values) > 1 else ""


def _notes(record: Record, place: Place, name: str, point: str) -> list[str]:
    """What a reader must know before a row is believed."""
    visits, notes = record.of(place, name, point), list[str]()
    if failed := sum(visit.failed for visit in visits):
        notes.append(f"{failed} failed")
    others_cores = _others_cores(record, place, [name], point)
    if others_cores > DISTURBED_CORES:
        notes.append(f"others took {others_cores:.1f} cores")
    pairs = [pair for pair in record.pairs(place, name, point) if not pair[0].failed + pair[1].failed]
    tokens = [(ours.prompt_tokens, theirs.prompt_tokens) for ours, theirs in pairs]
    if differ := [each for each in tokens if each[0] != each[1]]:
        notes.append(f"counts {differ[0][1]:,} prompt tokens where we count {differ[0][0]:,}")
    return notes


def _others_cores(record: Record, place: Place, names: Sequence[str], point: str) -> float:
    """The most that others took during a visit: from some 0.1 on a ratio is of the neighbours too."""
    visits = [visit for name in names for visit in record.of(place, name, point)]
    return max(visit.others_cores or 0.0 for visit in visits)


def _print_shares(record: Record) -> None:
    print("\nWhere our steps' time went\n")
    print(f"{'at once':>7}  {'step ms':>8}  {'schedule':>9}  {'forward':>8}  {'sample':>7}")
    for point in POINTS:
        if shares := _shares(record, [point]):
            parts = [
                each / shares.step_ns for each in (shares.schedule_ns, shares.forward_ns, shares.sample_ns)
            ]
            step_ms = shares.step_ns / shares.steps / 1e6
            print(f"{point:>7}  {step_ms:8.2f}  {parts[0]:9.2%}  {parts[1]:8.1%}  {parts[2]:7.2%}")
    print()


def to_json(record: Record, servers: Sequence[Contender]) -> dict[str, Any]:
    """Null: nothing was measured; where a peer is not there, `absent` says why."""
    places = _places(servers)
    peers = {THEIRS: Place.IN_PROCESS} | {e.name: Place.HTTP for e in servers if not e.name.startswith(OURS)}
    ratios = {
        name: {point: found for point in POINTS if (found := ratios_of(record, place, name, point))}
        for name, place in peers.items()
    }
    total = _shares(record, [*POINTS])
    return {
        "tokens_per_s": _rates(record, Place.IN_PROCESS, places[Place.IN_PROCESS]),
        "tokens_per_s_http": _rates(record, Place.HTTP, places[Place.HTTP]),
        **{f"ratio_vs_{name}": _each(found, median) for name, found in ratios.items()},
        "ratio_spread": {
            name: _each({point: r for point, r in found.items() if len(r) > 1}, spread)
            for name, found in ratios.items()
        },
        "others_cores_max": {
            name: {point: _others_cores(record, place, [OURS, name], point) for point in ratios[name]}
            for name, place in peers.items()
        },
        "rounds": {name: _each(found, len) for name, found in ratios.items()},
        "short_ttft_p95_ratio_mixed": {
            name: {
                ours: _rounded(short_ttft_ratio(record, place, name, ours))
                for ours in places[place]
                if ours.startswith(OURS)
            }
            for name, place in peers.items()
        },
        "latency_ms": {
            place.value: {name: _latencies(record, place, name) for name in names}
            for place, names in places.items()
        },
        "plan_share": _rounded(total.schedule_ns / total.step_ns) if total else None,
        "precision": {THEIRS: OUR_PRECISION} | {each.name: each.precision for each in servers},
        "threads": len(processors()),
        "absent": {each.name: each.absent for each in servers if each.absent},
    }


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles, as a share of the median."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float((high - low) / 2 / median(values))


def ratios_of(record: Record, place: Place, peer: str, point: str) -> list[float]:
    """Ours through theirs, round by round."""
    pairs = record.pairs(place, peer, point)
    return [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs]


def short_ttft_ratio(record: Record, place: Place, peer: str, ours: str) -> float | None:
    """P95 of the short class of the mix, ours through theirs: below 1 is better."""
    pairs = record.pairs(place, peer, MIXED, ours)
    ratios = [_p95(mine) / _p95(theirs) for mine, theirs in pairs]
    return median(ratios) if ratios else None


def _p95(visit: Visit) -> float:
    return float(np.percentile(visit.ttft_ms[SHORT], 95))


def _ttft_ms(visits: Sequence[Visit]) -> list[float]:
    """Of the mix only the short class: the other has too few requests."""
    return [t for v in visits for name, times in v.ttft_ms.items() if name != LONG for t in times]


def _itl_ms(visits: Sequence[Visit]) -> list[float]:
    return [gap for visit in visits for gap in visit.itl_ms]


def _latencies(record: Record, place: Place, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for point in POINTS:
        if visits := record.of(place, name, point):
            both = {"ttft": percentiles(_ttft_ms(visits)), "itl": percentiles(_itl_ms(visits))}
            found[point] = {
                kind: {"p50": round(p.p50, 2), "p95": round(p.p95, 2), "p99": round(p.p99, 2)}
                for kind, p in both.items()
                if p is not None
            }
    return found or None


def _rates(record: Record, place: Place, names: Sequence[str]) -> dict[str, dict[str, float] | None]:
    return {
        name: _each(
            {point: [v.tokens_per_s for v in record.of(place, name, point)] for point in POINTS}, median
        )
        for name in names
    }


def _each(by_point: dict[str, list[float]], value: Callable[[list[float]], float]) -> dict[str, float] | None:
    return {point: round(value(found), 4) for point, found in by_point.items() if found} or None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _shares(record: Record, points: Sequence[str]) -> Shares | None:
    """Of our steps in this process, all rounds together."""
    visits = [visit for point in points for visit in record.of(Place.IN_PROCESS, OURS, point)]
    shares = [visit.shares for visit in visits if visit.shares is not None]
    return reduce(Shares.plus, shares) if shares else None
