"""What a search for the highest rate found, for a person."""

from math import ceil, inf

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.objective import Objectives
from headrace.measure.capacity import Capacity, Found, Probe
from headrace.measure.goodput import Verdict

_ENDED = {
    Found.NO_STEADY_STATE: "NO STEADY STATE: even at the lowest rate tried the queue grew.",
    Found.NEVER_MET: "NOT MET: even at the lowest rate tried, where the server kept up, it was too slow.",
    Found.NEVER_MISSED: "NOT REACHED: at the highest rate tried it still met. Start higher with --rate.",
    Found.CLIENT_LIMIT: "NOT REACHED: this client cannot send more. Give it more CPU, or another machine.",
}


def print_capacity(capacity: Capacity, objectives: Objectives, console: Console) -> None:
    console.print(Text(headline(capacity), style="bold"))
    if said := grounds(capacity):
        console.print(Text(said))
    console.print(Text("; ".join(map(str, objectives)), style="dim"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for probe in sorted(capacity.probes, key=lambda each: each.rate):
        table.add_row(f"{probe.rate:.3g} /s", verdict_of(probe), Text(probe.why))
    console.print(table)


def probe_line(probe: Probe) -> str:
    return f"  {probe.rate:.3g} /s: {verdict_of(probe)}, {probe.why}"


def verdict_of(probe: Probe) -> str:
    return str(probe.verdict) if probe.is_valid else "invalid"


def headline(capacity: Capacity) -> str:
    if capacity.found is Found.FOUND:
        return f"CAPACITY: {_between(capacity)}."
    if capacity.found is Found.UNDECIDED:
        return f"UNDECIDED {_between(capacity)}: {_longer(capacity)}."
    return _ENDED[capacity.found]


def _longer(capacity: Capacity) -> str:
    """What would tell more: a length that is known to do where requests were too few."""
    low, high = capacity.met or 0.0, capacity.missed or inf
    short = [
        (probe.rate, probe.would_do_s)
        for probe in capacity.probes
        if probe.would_do_s is not None and low <= probe.rate <= high
    ]
    if not short:
        return "longer runs can tell more. Raise --duration"
    # By requests, as a class that never came in a short run has no say in its seconds.
    requests = max(rate * would_do_s for rate, would_do_s in short)
    lowest, highest = (10 * ceil(requests / rate / 10) for rate in (min(short)[0], max(short)[0]))
    more = f" at the highest of these rates, {lowest}s at the lowest" if lowest > highest else ""
    return f"runs had too few requests. About --duration {highest}s would do{more}"


def _between(capacity: Capacity) -> str:
    match capacity.met, capacity.missed:
        case None, None:
            return "at any rate"
        case None, float(missed):
            return f"below {missed:.3g} requests a second"
        case float(met), None:
            return f"above {met:.3g} requests a second"
        case met, missed:
            return f"between {met:.3g} and {missed:.3g} requests a second"


def grounds(capacity: Capacity) -> str:
    """How often each end was tried, and what came of it."""
    ends = ((Verdict.MET, capacity.met), (Verdict.MISSED, capacity.missed))
    said = [_end(capacity, verdict, rate) for verdict, rate in ends if rate is not None]
    return f"It {' and '.join(said)}." if said else ""


def _end(capacity: Capacity, verdict: Verdict, rate: float) -> str:
    runs = sum(p.rate == rate and p.is_valid and p.verdict is verdict for p in capacity.probes)
    times = "in one run alone" if runs == 1 else f"in {runs} runs"
    return f"{verdict} at {rate:.3g} /s {times}"
