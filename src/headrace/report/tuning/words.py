"""The small words of a search's report: settings, values, loads, how near to a limit, how far off a twin."""

from collections.abc import Sequence
from math import inf

from headrace.core.conclusion import Predicted, Value
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Purpose, Verdict
from headrace.report.tuning.tuning import Tuning
from headrace.report.units import many, seconds
from headrace.targets.flags import as_flags

_MIB, _GIB = 2**20, 2**30


def settings_words(overrides: Overrides) -> str:
    """Settings as flags, or a word for none."""
    return " ".join(as_flags(overrides)) or "the starting settings"


def named_words(overrides: Overrides) -> str:
    """Settings by their names, for tables: `max_num_seqs 64, kv_cache_memory_bytes 2 GiB`."""
    return ", ".join(f"{name} {value_words(name, value)}" for name, value in overrides.items()) or "the start"


def rate_words(amount: float) -> str:
    """Three digits, the last ones too where they are zeros."""
    return f"{amount:#.3g}".rstrip(".") if amount < 1000 else f"{amount:,.0f}"


def value_words(name: str, value: Value | None) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    if name.endswith("_bytes") and not isinstance(value, str):
        return f"{value / _GIB:.3g} GiB" if value >= _GIB else f"{value / _MIB:,.0f} MiB"
    if name == "long_prefill_token_threshold" and value == 0:
        return "0 (no cap)"
    return str(value)


def load_words(tuning: Tuning, load: float) -> str:
    """A load as requests a second, where the workload's own rate is known."""
    rate = tuning.traffic.rate_rps
    return f"{load:.3g} times the load" if rate is None else f"{load * rate:.3g} requests/s"


def grade_words(grade: Grade | NoResult | None) -> str:
    """How near to the limits."""
    if grade is None:
        return "-"
    if isinstance(grade, NoResult):
        return "no result"
    return "failures" if grade.ratio == inf else f"{grade.ratio:.2f}"


def who(request_class: str) -> str:
    return f"{request_class} requests" if request_class else "Requests"


def of_class(request_class: str) -> str:
    return f"{request_class} " if request_class else ""


def time_words(amount_s: float) -> str:
    return "more failed" if amount_s == inf else seconds(amount_s)


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def after_word(tuning: Tuning) -> str:
    found = tuning.conclusion
    if found is not None and found.verdict is Verdict.UNREACHABLE:
        return "nearest"
    return "winner" if found is not None and found.verdict is Verdict.IMPROVED else "candidate"


def twin_words(predictions: Sequence[Predicted]) -> str:
    """How far predictions were off, over all runs, and for the last one."""
    both = [
        (each.measured.ratio / each.predicted.ratio, each)
        for each in predictions
        if each.purpose is not Purpose.LEVER
        and isinstance(each.measured, Grade)
        and isinstance(each.predicted, Grade)
        and 0 < each.predicted.ratio < inf
        and each.measured.ratio < inf
    ]
    if not both:
        return "nothing to compare it with"
    off = sorted(max(ratio, 1 / ratio) if ratio else inf for ratio, _ in both)
    beyond = sum(each.is_beyond_noise for _, each in both)
    last = both[-1][1]
    return (
        f"run {last.number + 1}: {grade_words(last.predicted)} times the limit predicted, "
        f"{grade_words(last.measured)} measured; over {many(len(both), 'run')} the median is off by "
        f"{off[len(off) // 2] - 1:.0%}, {beyond} beyond the noise"
    )


def pace_words(tuning: Tuning) -> str:
    """How the runs corrected the twin."""
    found = tuning.conclusion
    pace = None if found is None else found.pace
    if pace is None or (pace.prefill, pace.decode) == (1.0, 1.0):
        return "The runs gave no reason to correct the twin."
    return (
        f"The runs corrected the twin: steps with prompts take {pace.prefill:.2f} times, steps that only "
        f"decode {pace.decode:.2f} times as long as it was told. Predictions are at that pace."
    )


def clock(amount_s: float) -> str:
    """`21 s`, `9 min 12 s`."""
    minutes, rest = divmod(round(amount_s), 60)
    return f"{minutes} min {rest} s" if minutes else seconds(amount_s)
