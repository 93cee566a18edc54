"""What a reader without time takes along of a run: may it be believed, did it keep its promises, the figures.

Measurement, Objectives -> run_lead -> Lead
"""

from collections.abc import Iterator

from headrace.core.measurement import ALL, Load, Measurement
from headrace.core.objective import Objectives
from headrace.measure.goodput import Judged, Verdict, goodput, judged, overall
from headrace.measure.steady import steadiness
from headrace.measure.summary import ClassSummary, summarise
from headrace.measure.validity import check
from headrace.report.page import Lead, Tile, Tone
from headrace.report.trust import bounded
from headrace.report.units import seconds

_TONES = {Verdict.MET: Tone.GOOD, Verdict.MISSED: Tone.BAD, Verdict.UNDECIDED: Tone.PLAIN}
_WORST_FIRST = (Verdict.MISSED, Verdict.UNDECIDED)


def run_lead(measurement: Measurement, objectives: Objectives | None) -> Lead:
    """The worst that is to be said, with the figures of all classes together."""
    word, sentence, tone = _said(measurement, objectives)
    return Lead(word, sentence, tone, tuple(_tiles(measurement, objectives)))


def _said(measurement: Measurement, objectives: Objectives | None) -> tuple[str, str, Tone]:
    reasons = check(measurement).reasons
    if reasons:
        return "INVALID", f"This run says little of the server: {'; '.join(reasons)}.", Tone.BAD
    if not measurement.timelines:
        return "NO ANSWER", "Nothing was answered.", Tone.BAD
    steady = steadiness(measurement)
    if steady.is_steady is False and measurement.load is not Load.CLOSED:
        why = f"{steady.why}. Latencies are a matter of how long the run was."
        return "IT COULD NOT KEEP UP", f"{why[0].upper()}{why[1:]}", Tone.BAD
    if objectives:
        judgements = judged(measurement, objectives)
        verdict = overall(judgements)
        return f"PROMISES {verdict.upper()}", _of_promises(judgements), _TONES[verdict]
    return "MEASURED", "Without --slo nothing was promised. The run may be believed.", Tone.PLAIN


def _of_promises(judgements: list[Judged]) -> str:
    """Those that are not met, or how many there are."""
    others = [each for verdict in _WORST_FIRST for each in judgements if each.verdict is verdict]
    if not others:
        return f"All {len(judgements)} of them, each with its whole interval."
    return "; ".join(
        f"{each.request_class}, {str(each.objective).rpartition(': ')[2]}: {each.verdict}, "
        f"{bounded(each.value_s)} measured"
        for each in others
    )


def _tiles(measurement: Measurement, objectives: Objectives | None) -> Iterator[Tile]:
    summaries = summarise(measurement)
    whole = summaries[ALL]
    classes = [each for name, each in summaries.items() if name != ALL] if len(summaries) > 2 else []
    if whole.ttft_s is not None:
        yield Tile("TTFT, P95", seconds(whole.ttft_s.p95), _by_class(classes, "ttft_s"))
    if whole.itl_s is not None:
        yield Tile("ITL, P95", seconds(whole.itl_s.p95), _by_class(classes, "itl_s"))
    rate = f"{whole.throughput_rps:.2f} answers/s"
    yield Tile("output tokens/s", f"{whole.output_tokens_per_s:,.0f}", rate)
    yield Tile("failed", f"{whole.failed:,}", f"of {whole.requests:,} requests")
    if objectives:
        good = goodput(measurement, objectives)[ALL]
        yield Tile("goodput", f"{good.per_s:.2f} /s", f"{good.attainment:.1%} of requests within all limits")


def _by_class(classes: list[ClassSummary], latency: str) -> str:
    known = [(each.request_class, getattr(each, latency)) for each in classes]
    return ", ".join(f"{name} {seconds(found.p95)}" for name, found in known if found is not None)
