"""A search as one object for programs: the figures of the page, names with their units (docs/tuning.md).

Tuning --tuning_json--> {"verdict": …, "recommended": {…}, "classes": […], "trials": […], …}
"""

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from headrace.core.conclusion import Bracket, Conclusion, Curve, Explanation, LeverFound, Predicted
from headrace.core.grade import Grade
from headrace.core.objective import Objective
from headrace.core.trial import NoResult
from headrace.report.tuning.figures import Bills, Compared, Figure, Pair, Row, compared
from headrace.report.tuning.headline import headline, thousand_costs
from headrace.report.tuning.moves import move_words
from headrace.report.tuning.trials import Trial, trials_of
from headrace.report.tuning.tuning import PoolAdvice, Tuning
from headrace.report.workload import features_json

VERSION = 1


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Only what JSON knows: dicts, lists, strings, numbers, None. What is infinite is None."""
    found, sides = tuning.conclusion, compared(tuning)
    said = headline(tuning, sides)
    return {
        "format": "headrace.tuning",
        "version": VERSION,
        "verdict": found.verdict.value if found else None,
        "headline": said.sentence,
        "why": found.why if found else None,
        "interrupted": tuning.is_interrupted,
        "goal": _goal(tuning),
        "server": {
            "name": tuning.server.name,
            "model": tuning.server.model,
            "start": dict(tuning.server.start),
            "command": tuning.server.command,
            "restarts": tuning.server.restarts,
            "headroom_bytes": tuning.server.headroom_bytes,
            "cores": tuning.server.cores,
        },
        "workload": _workload(tuning),
        "recommended": dict(found.recommended) if found else {},
        "recommended_settings": dict(tuning.server.start) | (dict(found.recommended) if found else {}),
        "command": tuning.server.recommended if found and found.recommended else tuning.server.command,
        "contender": dict(found.contender) if found and found.contender else None,
        "compared": _compared(sides),
        "gain": asdict(found.gain) if found and found.gain else None,
        "spread": found.spread if found else None,
        "capacity": _capacity(tuning, found),
        "levers": [_lever(lever) for lever in found.levers] if found else [],
        "pace": asdict(found.pace) if found else None,
        "predictions": [_predicted(each) for each in found.predictions] if found else [],
        "explanation": _explanation(tuning.explanation) if tuning.explanation else None,
        "advice": _advice(tuning),
        "pools": _pools(tuning.pools) if tuning.pools else None,
        "trials": [_trial(trial) for trial in trials_of(tuning)],
        "searched": {"simulations": _simulated(tuning), "twin": tuning.twin, "twin_s": tuning.twin_s},
        "notes": [*tuning.traffic.warnings, *(found.notes if found else ())],
        "resume": tuning.resume or None,
        "journal": tuning.journal or None,
        "versions": dict(tuning.versions),
        "seed": tuning.seed,
    }


def _goal(tuning: Tuning) -> dict[str, Any]:
    goal = tuning.goal
    return {
        "aim": goal.aim.value,
        "objectives": [_objective(each) for each in goal.objectives],
        "relative": goal.is_relative,
        "least_throughput": goal.least_throughput,
        "price_per_hour": goal.price_per_hour,
        "proposed_because": tuning.goal_why or None,
    }


def _objective(objective: Objective) -> dict[str, Any]:
    return {
        "class": objective.request_class,
        "metric": objective.metric.value,
        "percentile": objective.percentile,
        "limit_s": objective.limit_s,
    }


def _workload(tuning: Tuning) -> dict[str, Any]:
    traffic = tuning.traffic
    return {
        "said": traffic.said,
        "kind": traffic.kind or None,
        "rate_rps": traffic.rate_rps,
        "features": features_json(traffic.features) if traffic.features else None,
        "warnings": list(traffic.warnings),
    }


# --- before and after --------------------------------------------------------------------------


def _compared(sides: Compared) -> dict[str, Any] | None:
    before, after = sides.before, sides.after
    if before is None:
        return None
    return {
        "load": before.load,
        "before": {"runs": [number + 1 for number in before.numbers], "settings": {}},
        "after": None
        if after is None
        else {"runs": [number + 1 for number in after.numbers], "settings": dict(after.overrides)},
        "latencies": [_row(row) for row in sides.rows],
        "throughput_rps": _pair(sides.throughput_rps),
        "output_tokens_per_s": _pair(sides.output_tokens_per_s),
        "failed": {"before": before.failed, "after": after.failed if after else None},
        "slow_bills_s": [_bills(each) for each in sides.bills],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "class": row.request_class,
        "latency": row.label,
        "limit_s": row.objective.limit_s if row.objective else None,
        **_pair((row.before, row.after)),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {"before": _figure(pair[0]), "after": _figure(pair[1])}


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    between = None if figure.interval is None else [_finite(end) for end in figure.interval]
    return {"value": _finite(figure.value), "interval_95": between}


def _bills(bills: Bills) -> dict[str, Any]:
    return {
        "class": bills.request_class,
        "from": "twin" if bills.is_twin else "server",
        "before": _bill(bills.before),
        "after": _bill(bills.after) if bills.after else None,
    }


def _bill(bill: Mapping[Any, float]) -> dict[str, float]:
    return {cause.value: amount_s for cause, amount_s in bill.items()}


def _capacity(tuning: Tuning, found: Conclusion | None) -> dict[str, Any] | None:
    """Of a goal that asks for one."""
    if found is None or not tuning.goal.seeks_capacity:
        return None
    price = thousand_costs(tuning)
    return {
        "before": _bracket(found.baseline_bracket) | {"believed": found.baseline_believed},
        "after": _bracket(found.contender_bracket) if found.contender else None,
        "thousand_requests_cost": {"before": price[0], "after": price[1]} if price else None,
    }


def _bracket(bracket: Bracket) -> dict[str, Any]:
    return {"met": bracket.met, "missed": bracket.missed, "replicas": bracket.replicas()}


# --- what it rests on --------------------------------------------------------------------------


def _grade(grade: Grade | NoResult) -> dict[str, Any]:
    if isinstance(grade, NoResult):
        return {"failed_because": grade.cause}
    return {
        "ratio": _finite(grade.ratio),
        "meets": grade.meets,
        "objectives": [
            _objective(each.objective)
            | {"class": each.request_class, "value_s": _finite(each.value_s), "ratio": _finite(each.ratio)}
            for each in grade.attained
        ],
        "classes": [
            asdict(each) | {"slow_bill_s": _bill(each.slow_bill_s) if each.slow_bill_s else None}
            for each in grade.classes
        ],
        "due": grade.due,
        "failed": grade.failed,
        "throughput_rps": grade.throughput_rps,
        "output_tokens_per_s": grade.output_tokens_per_s,
        "steady": grade.is_steady,
        "preemptions": grade.preemptions,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    run, detail = trial.run, trial.detail
    return {
        "run": trial.number,
        "purpose": run.purpose.value,
        "settings": dict(run.overrides),
        "load": run.load,
        "result": _grade(run.outcome),
        "valid": None if trial.invalid is None else not trial.invalid,
        "invalid_because": list(trial.invalid or ()),
        "worst_interval_s": list(trial.interval_s) if trial.interval_s else None,
        "took_s": run.took_s,
        "at": detail.at or None,
        "command": detail.command or None,
        "remarks": list(detail.remarks),
        "busy_cores": detail.busy_cores,
        "others_cores": detail.others_cores,
    }


def _lever(lever: LeverFound) -> dict[str, Any]:
    return {
        "name": lever.name,
        "settings": dict(lever.overrides),
        "reason": lever.reason,
        "kept": lever.is_kept,
        "why": lever.why,
        "gain": asdict(lever.gain) if lever.gain else None,
    }


def _predicted(each: Predicted) -> dict[str, Any]:
    return {
        "run": each.number + 1,
        "settings": dict(each.overrides),
        "load": each.load,
        "predicted": _grade(each.predicted),
        "measured": _grade(each.measured),
        "beyond_noise": each.is_beyond_noise,
    }


def _explanation(explanation: Explanation) -> dict[str, Any]:
    return {
        "start": _grade(explanation.start),
        "answer": _grade(explanation.answer),
        "curves": [_curve(curve) for curve in explanation.curves],
        "frontier": [
            {
                "settings": dict(point.overrides),
                "load": point.load,
                "output_tokens_per_s": point.output_tokens_per_s,
                "ratio": _finite(point.ratio),
            }
            for point in explanation.frontier
        ],
        "obvious_moves": [
            {
                "name": move.name,
                "settings": dict(move.overrides),
                "result": _grade(move.grade),
                "why": move_words(move, explanation) or None,
            }
            for move in explanation.obvious
        ],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "lever": curve.lever,
        "winner": curve.winner,
        "knee": curve.knee,
        "steps": list(curve.steps),
        "points": [
            {
                "value": point.value,
                "capacity": point.capacity,
                "result": _grade(point.grade),
                "reason": point.reason,
            }
            for point in curve.points
        ],
    }


def _advice(tuning: Tuning) -> dict[str, Any] | None:
    advice = tuning.advice
    if advice is None:
        return None
    return {
        "settings": dict(advice.overrides),
        "load": advice.load,
        "now": _grade(advice.now),
        "then": _grade(advice.then),
        "command": advice.command,
    }


def _pools(advice: PoolAdvice) -> dict[str, Any]:
    found = advice.found
    return {
        "bound_tokens": advice.bound_tokens,
        "short_share": advice.short_share,
        "together": asdict(found.together),
        "apart": [
            asdict(pool) | {"command": command}
            for pool, command in zip(found.apart, advice.commands, strict=True)
        ],
        "servers_share": found.share,
        "pays_from_servers": found.pays_from,
        "why": found.why,
    }


def _simulated(tuning: Tuning) -> int:
    found, explained = tuning.conclusion, tuning.explanation
    return (found.simulated if found else 0) + (explained.simulated if explained else 0)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
