"""What a search for the highest rate found, for a person."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.objective import Objectives
from headrace.measure.capacity import Capacity, Found, Probe

_ENDED = {
    Found.NO_STEADY_STATE: "NO STEADY STATE: even at the lowest rate tried the queue grew.",
    Found.NEVER_MET: "NOT MET: even at the lowest rate tried, where the server kept up, it was too slow.",
    Found.NEVER_MISSED: "NOT REACHED: at the highest rate tried it still met. Start higher with --rate.",
    Found.CLIENT_LIMIT: "NOT REACHED: this client cannot send more. Give it more CPU, or another machine.",
    Found.UNDECIDED: "UNDECIDED: the runs were too short to tell. Raise --duration.",
}


def print_capacity(capacity: Capacity, objectives: Objectives, console: Console) -> None:
    console.print(Text(headline(capacity), style="bold"))
    console.print(Text("; ".join(map(str, objectives)), style="dim"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for probe in sorted(capacity.probes, key=lambda each: each.rate):
        table.add_row(f"{probe.rate:.3g} /s", _verdict(probe), Text(probe.why))
    console.print(table)


def probe_line(probe: Probe) -> str:
    return f"  {probe.rate:.3g} /s: {_verdict(probe)}, {probe.why}"


def _verdict(probe: Probe) -> str:
    return str(probe.verdict) if probe.is_valid else "invalid"


def headline(capacity: Capacity) -> str:
    known = []
    if capacity.met is not None:
        known.append(f"it met at {capacity.met:.3g} /s")
    if capacity.missed is not None:
        known.append(f"missed at {capacity.missed:.3g} /s")
    if capacity.found is Found.FOUND:
        above = f"{capacity.missed:.3g}" if capacity.missed is not None else "more"
        edge = f"the edge is between {capacity.met:.3g} and {above}"
        return f"CAPACITY: {capacity.met:.3g} requests a second; {edge}."
    tail = f" ({' and '.join(known)})" if known else ""
    return _ENDED[capacity.found] + tail
