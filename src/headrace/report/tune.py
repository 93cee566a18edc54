"""What a search found, in words, for the person with the latency spike. 80 columns.

    Tuned -> tune_text: verdict, before and after, where the time went, why, cost, trials, commands

Every sentence is made from this search's own figures. Knows nothing of how the trials came about.
"""

import re
import textwrap
from collections.abc import Sequence

from headrace.core.bill import CAUSES
from headrace.core.measurement import ALL, Measurement
from headrace.core.ports import Overrides
from headrace.core.trial import NoResult, Trial, Verdict
from headrace.measure.summary import ClassSummary, summarise
from headrace.report.bill import WORDS
from headrace.report.tuned import START, Side, Tuned, p95_ttft_s
from headrace.report.units import seconds
from headrace.targets.flags import as_flags

WIDTH = 80
_MIN_FOR_P95 = 20
"""Fewer answers a run than this, and the P95 is little more than the slowest one."""
_MIN_DOCUMENTS = 5
"""Fewer long requests a run than this are a handful of incidents, not a distribution."""
_NOTICEABLE = 0.05
"""A latency that grew by less than this share is not worth a person's attention."""
_SETTINGS_WIDTH = 42
_NO_BREAK = "\N{NO-BREAK SPACE}"


def tune_text(tuned: Tuned) -> str:
    """The whole report. Without a single measured run there is only the verdict."""
    before, after = tuned.before(), tuned.after()
    if before is None:
        return _paragraph(f"NOTHING MEASURED: {tuned.outcome.why}.")
    parts = [
        _verdict(tuned, before, after),
        _before_and_after(tuned, before, after),
        _where_it_went(tuned, before, after),
        _why_it_works(tuned, before, after),
        _what_it_costs(tuned, before, after),
        _trials(tuned),
        _remarks(tuned, before),
        _commands(tuned),
    ]
    return "\n\n".join(part for part in parts if part)


def settings_words(overrides: Overrides) -> str:
    """Settings as flags, or a word for none."""
    return " ".join(as_flags(overrides)) or "the starting settings"


def _verdict(tuned: Tuned, before: Side, after: Side | None) -> str:
    outcome, name = tuned.outcome, tuned.target_class
    start_s = p95_ttft_s(before.classes, name)
    best_s = p95_ttft_s(after.classes, name) if after else None
    if outcome.verdict is Verdict.IMPROVED and outcome.gain and start_s and best_s:
        gain = outcome.gain
        return _paragraph(
            f"IMPROVED: {name} requests get their first token {start_s / best_s:.1f} times sooner, "
            f"P95 TTFT {seconds(start_s)} -> {seconds(best_s)}. Compared run by run, {1 / gain.ratio:.1f} "
            f"times, and with 95 % confidence at least {1 / gain.ratio_at_most:.1f} times: from "
            f"{_many(gain.baseline_runs, 'run')} of the start and "
            f"{_many(gain.contender_runs, 'repeat')} of the best; two runs of the same settings "
            f"differ by a factor of {gain.spread:.2f}."
        )
    start = f"P95 TTFT of {name} requests {_or_dash(start_s)}"
    if outcome.verdict is Verdict.INCONCLUSIVE:
        best = f", best so far {seconds(best_s)}" if best_s else ""
        return _paragraph(
            f"INCONCLUSIVE: {outcome.why}. At the start, {start}{best}. A larger --budget decides it."
        )
    return _paragraph(
        f"NOTHING BETTER found beyond the noise: keep the starting settings, {start}. "
        f"The reason: {outcome.why}."
    )


def _after_word(tuned: Tuned) -> str:
    return "best" if tuned.outcome.verdict is Verdict.IMPROVED else "candidate"


def _before_and_after(tuned: Tuned, before: Side, after: Side | None) -> str:
    rows = [f"{'':27}{'start':>10}" + (f"{_after_word(tuned):>11}   change" if after else "")]
    for name, was in before.classes.items():
        now = after.classes.get(name) if after else None
        labels = [name]
        for label, start, best in _table_rows(name, was, now):
            line = f"  {labels.pop() if labels else '':8} {label:16}{start:>10}"
            rows.append(line + (f"{best:>11}   {_change(label, was, now)}" if now else ""))
    return "\n".join(line.rstrip() for line in rows)


def _table_rows(name: str, was: ClassSummary, now: ClassSummary | None) -> list[tuple[str, str, str]]:
    """Label, before and after; the last is empty without an after."""
    labels = ["throughput"] if name == ALL else ["TTFT P50", "TTFT P95", "ITL P95", "throughput"]
    rows = [(label, _shown(label, was), _shown(label, now) if now else "") for label in labels]
    if was.failed or (now and now.failed):
        rows.append(("failed", f"{was.failed}/{was.requests}", f"{now.failed}/{now.requests}" if now else ""))
    return rows


def _figure(label: str, summary: ClassSummary) -> float | None:
    kind, _, quantile = label.partition(" ")
    if kind == "throughput":
        return summary.throughput_rps
    found = {"TTFT": summary.ttft_s, "ITL": summary.itl_s}.get(kind)
    return None if found is None else found.p50 if quantile == "P50" else found.p95


def _shown(label: str, summary: ClassSummary) -> str:
    figure = _figure(label, summary)
    return f"{figure:.2f} /s" if figure is not None and label == "throughput" else _or_dash(figure)


def _change(label: str, was: ClassSummary, now: ClassSummary) -> str:
    """A factor where it is one worth the name, else per cent."""
    start, best = _figure(label, was), _figure(label, now)
    if not start or not best:
        return ""
    if start / best >= 1.5:
        return f"{start / best:.1f} times less"
    return f"{best / start:.1f} times more" if best / start >= 1.5 else f"{best / start - 1:+.0%}"


def _where_it_went(tuned: Tuned, before: Side, after: Side | None) -> str:
    was, now = before.slow_bill_s, after.slow_bill_s if after else None
    if was is None:
        return ""

    def row(what: str, budget: str, start: float, best: float | None) -> str:
        return f"  {what:28} {budget:28}{start:>7.2f}" + ("" if best is None else f"{best:>11.2f}")

    shown = [cause for cause in CAUSES if max(was[cause], now[cause] if now else 0.0) >= 0.005]
    shown.sort(key=lambda cause: -was[cause])
    return "\n".join(
        [
            f"Where the slowest 5 % of {tuned.target_class} requests waited, seconds by budget:",
            f"  {'':28} {'budget':28}{'start':>7}" + (f"{_after_word(tuned):>11}" if now else ""),
            *(row(WORDS[c].what, WORDS[c].budget, was[c], now[c] if now else None) for c in shown),
            row("in all", "", sum(was.values()), sum(now.values()) if now else None),
        ]
    )


def _why_it_works(tuned: Tuned, before: Side, after: Side | None) -> str:
    """From the bill: which waits went away, and what the change had to do with them."""
    was, now = before.slow_bill_s, after.slow_bill_s if after else None
    if tuned.outcome.verdict is not Verdict.IMPROVED or not was or not now:
        return ""
    saved = {cause: was[cause] - now[cause] for cause in CAUSES}
    gained_s = sum(seconds_s for seconds_s in saved.values() if seconds_s > 0)
    if gained_s <= 0:
        return ""
    most = sorted((cause for cause in CAUSES if saved[cause] > 0), key=lambda cause: -saved[cause])[:2]
    share = sum(saved[cause] for cause in most) / gained_s
    parts = " and ".join(f"'{WORDS[c].what}' ({was[c]:.2f} -> {now[c]:.2f} s)" for c in most)
    return _paragraph(f"Why: {share:.0%} of what was saved is {parts}. {_mechanism(tuned)}".rstrip())


def _mechanism(tuned: Tuned) -> str:
    changed, start = tuned.outcome.recommended, tuned.start
    tokens_before = start["max_num_batched_tokens"]
    tokens = changed.get("max_num_batched_tokens", tokens_before)
    cap = changed.get("long_prefill_token_threshold")
    sentences: list[str] = []
    if cap:
        sentences.append(
            f"One long prompt could fill a step of {tokens_before} tokens, and then the next; now it gets at "
            f"most {cap} of a step's {tokens}, so steps are short and have room for newcomers."
        )
        sentences += _budget_alone(tuned.outcome.trials, tuned.target_class)
    elif "max_num_batched_tokens" in changed:
        sentences.append(f"A step computes at most {tokens} tokens instead of {tokens_before}.")
    if "max_num_seqs" in changed:
        sentences.append(
            f"Up to {changed['max_num_seqs']} requests run at once instead of {start['max_num_seqs']}."
        )
    return " ".join(sentences)


def _budget_alone(trials: Sequence[Trial], name: str) -> list[str]:
    """What the reflex, a smaller token budget and nothing else, gave: where it was tried."""
    return [
        f"Lowering max_num_batched_tokens to {trial.overrides['max_num_batched_tokens']} alone gave "
        f"{_or_dash(p95_ttft_s(summarise(trial.result), name))}: a long prompt still fills every step, only "
        "there are more of them."
        for trial in trials
        if set(trial.overrides) == {"max_num_batched_tokens"} and isinstance(trial.result, Measurement)
    ][:1]


def _what_it_costs(tuned: Tuned, before: Side, after: Side | None) -> str:
    if tuned.outcome.verdict is not Verdict.IMPROVED or after is None:
        return ""
    worse: list[str] = []
    for name, was in before.classes.items():
        now = after.classes.get(name)
        for label in ("TTFT P50", "TTFT P95", "ITL P50", "ITL P95"):
            start, best = _figure(label, was), _figure(label, now) if now else None
            if name != ALL and start and best and best / start - 1 > _NOTICEABLE:
                worse.append(f"{name} {label} {seconds(start)} -> {seconds(best)} ({best / start - 1:+.0%})")
    lost = after.classes[ALL].throughput_rps / before.classes[ALL].throughput_rps - 1
    if lost < -0.01:
        worse.append(f"throughput {lost:+.0%}")
    return _paragraph(f"What it costs: {'; '.join(worse) or 'no measured latency grew by more than 5 %'}.")


def _trials(tuned: Tuned) -> str:
    """One row per choice, in the order of their first runs."""
    name = tuned.target_class
    rows = [
        f"Tried for real: {name} P95 TTFT of every run; long P95 TTFT, req/s of the first",
        f"  {'':{_SETTINGS_WIDTH}}{f'{name}, s':>18}{'long, s':>9}{'req/s':>8}",
    ]
    shown: list[Overrides] = []
    for trial in tuned.outcome.trials:
        if trial.overrides not in shown:
            shown.append(trial.overrides)
            rows += _choice_rows(trial.overrides, tuned)
    for choice in tuned.outcome.untried:
        rows += _in_columns(choice, f"{'not tried':>18}")
    return "\n".join(rows)


def _choice_rows(overrides: Overrides, tuned: Tuned) -> list[str]:
    summaries = [summarise(run) for run in tuned.outcome.measured(overrides)]
    figures = f"{'no result':>18}"
    if summaries:
        each = (p95_ttft_s(summary, tuned.target_class) for summary in summaries)
        p95s = " ".join("-" if p95 is None else f"{p95:.2f}" for p95 in each)
        long_s = p95_ttft_s(summaries[0], "long")
        long = "-" if long_s is None else f"{long_s:.1f}"
        figures = f"{p95s:>18}{long:>9}{summaries[0][ALL].throughput_rps:>8.2f}"
    causes = [
        trial.result.cause
        for trial in tuned.outcome.trials
        if trial.overrides == overrides and isinstance(trial.result, NoResult)
    ]
    failed = [_paragraph(f"failed: {cause}", indent="    ") for cause in causes[:1]]
    return _in_columns(overrides, figures) + failed


def _in_columns(overrides: Overrides, figures: str) -> list[str]:
    """The settings, one flag to a line, the figures beside the first, the others set in."""
    first, *others = _paired(overrides) or [settings_words(overrides)]
    return [f"  {first:{_SETTINGS_WIDTH}}{figures}", *(f"    {flag}" for flag in others)]


def _remarks(tuned: Tuned, before: Side) -> str:
    workload = tuned.outcome.measured(START)[0].workload
    scope = "So the confidence is about noise between runs, not about other traffic"
    remarks = [f"every run sent the same requests: {workload}. {scope}", *tuned.outcome.notes]
    was = before.classes.get(tuned.target_class)
    answered = (was.requests - was.failed) / before.runs if was else 0
    if answered < _MIN_FOR_P95:
        remarks.append(
            f"{answered:.0f} {tuned.target_class} requests a run are few for a P95: it is nearly the slowest "
            "one; longer runs (a larger --budget) say more"
        )
    long = before.classes.get("long")
    if long and long.requests / before.runs < _MIN_DOCUMENTS:
        remarks.append(
            f"{long.requests / before.runs:.0f} long in each run: their figures, and how often short ones "
            "met them, hang on a few requests"
        )
    untried = len(tuned.outcome.untried)
    if untried:
        remarks.append(f"{untried} candidates were not tried and may be better still")
    return "\n".join(_paragraph(f"Note: {remark}.") for remark in remarks)


def _commands(tuned: Tuned) -> str:
    ours = f"headrace serve {tuned.model}"
    if tuned.outcome.verdict is not Verdict.IMPROVED:
        return f"Command line, unchanged:\n  {ours}"
    changed = tuned.outcome.recommended
    return (
        f"Command line:\n{_command(ours, changed)}\n"
        f"The same for vLLM, which schedules in the same way:\n{_command('vllm serve MODEL', changed)}"
    )


def _command(start: str, overrides: Overrides) -> str:
    """One line, or several with backslashes where it would be too long."""
    flags = _paired(overrides)
    whole = " ".join([f"  {start}", *flags])
    return whole if len(whole) <= WIDTH else " \\\n      ".join([f"  {start}", *flags])


def _paired(overrides: Overrides) -> list[str]:
    """Each flag with its value, so that no line breaks between the two."""
    return [" ".join(as_flags({name: value})) for name, value in overrides.items()]


def _paragraph(text: str, indent: str = "") -> str:
    whole = re.sub(r"(\d) (m?s\b)", rf"\1{_NO_BREAK}\2", text)  # a number stays with its unit
    filled = textwrap.fill(
        whole, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return filled.replace(_NO_BREAK, " ")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _or_dash(amount_s: float | None) -> str:
    return "-" if amount_s is None else seconds(amount_s)
