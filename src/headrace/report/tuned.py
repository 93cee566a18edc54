"""What a search found, in figures: before and after, for a program and for the report in words.

    Outcome -> Tuned(before, after) -> tune_json (one line)

The start's figures pool all of its runs; the contender's pool its repeats, since its first run was
picked for being fast.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.core.bill import Cause
from headrace.core.measurement import ALL, Measurement
from headrace.core.ports import Overrides
from headrace.core.slow import slow_bill
from headrace.core.trial import NoResult, Outcome, Trial
from headrace.measure.summary import ClassSummary, summarise

START: Overrides = {}


@dataclass(frozen=True, slots=True)
class Side:
    """One choice of settings, all its runs together."""

    runs: int
    classes: dict[str, ClassSummary]
    """With one of all together."""
    slow_bill_s: Mapping[Cause, float] | None
    """Of the target class."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """An outcome, and what a report must know beside it."""

    outcome: Outcome
    start: Overrides
    """The levers' starting values, in full."""
    model: str
    target_class: str = "short"

    def before(self) -> Side | None:
        """The start; None if it was never measured."""
        return self._side(self.outcome.measured(START))

    def after(self) -> Side | None:
        """The contender's repeats, or its first run where there are none; None without a contender."""
        if self.outcome.contender is None:
            return None
        runs = self.outcome.measured(self.outcome.contender)
        return self._side(runs[1:] or runs)

    def _side(self, runs: Sequence[Measurement]) -> Side | None:
        if not runs:
            return None
        whole = pooled(runs)
        return Side(len(runs), summarise(whole), slow_bill(whole, self.target_class))


def pooled(runs: Sequence[Measurement]) -> Measurement:
    """All requests of one or more runs of the same settings, as if they were one long run."""
    return replace(
        runs[0],
        duration_s=sum(run.duration_s for run in runs),
        results=tuple(result for run in runs for result in run.results),
    )


def p95_ttft_s(classes: Mapping[str, ClassSummary], name: str) -> float | None:
    found = classes.get(name)
    return found.ttft_s.p95 if found and found.ttft_s else None


def tune_json(tuned: Tuned) -> str:
    """One line. `best` is the contender where there is one, proven or not, else the start again."""
    before, after = tuned.before(), tuned.after()
    outcome = tuned.outcome
    return json.dumps(
        {
            "verdict": outcome.verdict.value,
            "why": outcome.why,
            "baseline": _side_figures(before),
            "best": _side_figures(after or before),
            "recommended": tuned.start | outcome.recommended,
            "contender": outcome.contender,
            "gain": asdict(outcome.gain) if outcome.gain else None,
            "trials": [_trial_figures(trial) for trial in outcome.trials],
            "untried": list(outcome.untried),
        }
    )


def _side_figures(side: Side | None) -> dict[str, Any]:
    if side is None:
        return {}
    bill_s = {cause.value: seconds for cause, seconds in (side.slow_bill_s or {}).items()}
    return _figures(side.classes) | {"runs": side.runs, "slow_bill_s": bill_s or None}


def _figures(classes: Mapping[str, ClassSummary]) -> dict[str, Any]:
    """Per class, and the throughput of all together."""
    by_class: dict[str, Any] = {
        name: {
            "requests": summary.requests,
            "failed": summary.failed,
            "p50_ttft_s": summary.ttft_s.p50 if summary.ttft_s else None,
            "p95_ttft_s": summary.ttft_s.p95 if summary.ttft_s else None,
            "p95_itl_s": summary.itl_s.p95 if summary.itl_s else None,
            "throughput_rps": summary.throughput_rps,
        }
        for name, summary in classes.items()
        if name != ALL
    }
    return by_class | {"throughput_rps": classes[ALL].throughput_rps}


def _trial_figures(trial: Trial) -> dict[str, Any]:
    if isinstance(trial.result, NoResult):
        return {"settings": trial.overrides, "failed": trial.result.cause}
    return {"settings": trial.overrides} | _figures(summarise(trial.result))
