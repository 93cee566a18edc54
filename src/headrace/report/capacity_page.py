"""A search for the capacity as one HTML page: latency against load, with the knee.

Capacity, Objectives -> capacity_page -> HTML
"""

from headrace import __version__
from headrace.core.objective import Objectives
from headrace.measure.capacity import Capacity, Found, Probe
from headrace.measure.goodput import Verdict
from headrace.report.capacity import grounds, headline, verdict_of
from headrace.report.page import Lead, Section, Table, Tone, page
from headrace.report.run_charts import lines_over

_TONES = {Found.FOUND: Tone.GOOD, Found.UNDECIDED: Tone.PLAIN, Found.NEVER_MISSED: Tone.PLAIN}
_COLOURS = {Verdict.MET: "var(--good, #276749)", Verdict.MISSED: "var(--bad, #9b2c2c)"}
_UNDECIDED = "var(--plain, #2c5282)"


def capacity_page(target: str, capacity: Capacity, objectives: Objectives) -> str:
    probes = sorted(capacity.probes, key=lambda probe: probe.rate)
    rows = tuple((f"{probe.rate:.3g}", verdict_of(probe), probe.why) for probe in probes)
    sections = (
        Section(
            "Runs",
            charts=(_knee(probes),),
            table=Table(("requests/s", "verdict", "why"), rows, texts=frozenset({1, 2})),
        ),
    )
    word, _, sentence = headline(capacity).partition(": ")
    lead = Lead(
        word,
        f"{sentence[0].upper()}{sentence[1:]} {grounds(capacity)}",
        _TONES.get(capacity.found, Tone.BAD),
    )
    promises = "; ".join(map(str, objectives))
    return page(f"headrace bench {target}: capacity", promises, sections, f"headrace {__version__}.", lead)


def _knee(probes: list[Probe]) -> str:
    known = [(probe.rate, 1e3 * probe.ttft_p95_s, probe.verdict) for probe in probes if probe.ttft_p95_s]
    series = {
        verdict: points
        for verdict in Verdict
        if (points := [(rate, ttft_ms) for rate, ttft_ms, each in known if each is verdict])
    }
    return lines_over(
        "P95 TTFT of all against requests a second, ms",
        "requests a second",
        {verdict.value: points for verdict, points in series.items()},
        dots_only=True,
        colours=[_COLOURS.get(verdict, _UNDECIDED) for verdict in series],
    )
