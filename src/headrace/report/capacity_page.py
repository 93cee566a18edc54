"""A search for the capacity as one HTML page: latency against load, with the knee.

Capacity, Objectives -> capacity_page -> HTML
"""

from headrace import __version__
from headrace.core.objective import Objectives
from headrace.measure.capacity import Capacity, Probe
from headrace.measure.goodput import Verdict
from headrace.report.capacity import headline
from headrace.report.page import Section, Table, page
from headrace.report.run_charts import lines_over


def capacity_page(target: str, capacity: Capacity, objectives: Objectives) -> str:
    probes = sorted(capacity.probes, key=lambda probe: probe.rate)
    rows = tuple((f"{p.rate:.3g}", p.verdict.value if p.is_valid else "invalid", p.why) for p in probes)
    sections = (
        Section(
            headline(capacity),
            facts=(("promises", "; ".join(map(str, objectives))),),
            charts=(_knee(probes),),
            table=Table(("requests/s", "verdict", "why"), rows),
        ),
    )
    return page(f"headrace bench {target}: capacity", "", sections, f"headrace {__version__}.")


def _knee(probes: list[Probe]) -> str:
    known = [(probe.rate, 1e3 * probe.ttft_p95_s, probe.verdict) for probe in probes if probe.ttft_p95_s]
    series = {
        verdict.value: [(rate, ttft_ms) for rate, ttft_ms, each in known if each is verdict]
        for verdict in Verdict
    }
    return lines_over(
        "P95 TTFT against requests a second, ms",
        "requests a second",
        {name: points for name, points in series.items() if points},
        dots_only=True,
    )
