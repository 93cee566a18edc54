"""One tuning from its question to its answer: survey, baseline, twin, search, runs, journal put together.

    Asked --tune--> Tuning
      journal.survey, or: start the server, ask it, calibrate, fit a load          (cli.tuning_survey)
      baseline run -> goal where none was given -> Problem                         (tune.goals, tune.problem)
      tune.drive <-> Recorder: a run is made (cli.tuning_judge), kept, graded

Whatever ends it (the budget, Ctrl-C, a failure), the server that is running is stopped, and what was
measured is in the journal: the same command goes on from there.
"""

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from headrace.cli.costs import load_cost, save
from headrace.cli.tuning_journal import Journal
from headrace.cli.tuning_judge import ServerJudge
from headrace.cli.tuning_pools import pools_advice
from headrace.cli.tuning_recorder import Judging, Recorder, TwinJudge
from headrace.cli.tuning_survey import (
    Survey,
    Time,
    kv_binds,
    site_of,
    spare_cpus,
    survey_of,
    survey_of_twin,
    traffic_of,
    twin_server,
)
from headrace.cli.tuning_targets import Tunable, TwinTarget
from headrace.cli.tuning_telling import Teller
from headrace.cli.tuning_told import advice_of, detail_of, said_traffic, server_of, twin_words
from headrace.cli.tuning_twin import Grader, Predictor
from headrace.cli.tuning_workload import FilePart, Traffic, Wishes, require_room, timed, traffic_of_file
from headrace.core.conclusion import Conclusion
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.goal import Aim, Goal
from headrace.core.measurement import Measurement
from headrace.core.objective import Objectives
from headrace.core.ports import Overrides
from headrace.core.trial import Purpose, Wanted
from headrace.report.tuning.tuning import PoolAdvice, Tuning
from headrace.tune.belief import View, view_of
from headrace.tune.curves import explain
from headrace.tune.decide import Room, next_trial
from headrace.tune.drive import Budget, drive
from headrace.tune.goals import highest_load, propose_goal, relative_to, warnings_of
from headrace.tune.grade import grade
from headrace.tune.levers import further_levers
from headrace.tune.problem import Problem
from headrace.tune.space import demand_of, space_of
from headrace.tune.traffic import keeps_up, lighter
from headrace.tune.twin import Remembered, rung_of
from headrace.workload.columns import collect
from headrace.workload.features import Features, describe
from headrace.workload.mixed import SHORT
from headrace.workload.own_form import write_workload
from headrace.workload.readers import open_trace
from headrace.workload.trace import About

MOST_LIGHTER_LOADS = 2
BASELINE_RUNS = 2
"""Of an attached server: all that may be done to it."""
START: Overrides = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for."""

    target: Tunable
    time: Time
    workload: Path | None = None
    """None: the built-in mix."""
    part: FilePart = field(default_factory=FilePart)
    wishes: Wishes = field(default_factory=Wishes)
    objectives: Objectives = ()
    aim: Aim | None = None
    request_class: str | None = None
    price_per_hour: float | None = None
    api_key: str | None = None
    ray_address: str | None = None


def tune(asked: Asked, journal: Journal, teller: Teller) -> Tuning:
    """Raises `TargetFailed` where not even the start can be measured, `BadInput` for what cannot be asked."""
    teller.goal_asked(asked.objectives, asked.aim)
    with _judging(asked, journal, teller) as judging:
        features = _features(judging, judging.traffic)
        teller.workload(judging.traffic, judging.survey, features)
        recorder = Recorder(journal, judging.judge, asked.target)
        first = _first_baseline(asked, judging, recorder, teller)
        features = _features(judging, judging.traffic)  # of a lighter load, where it was made one
        goal, why = _goal(asked, features, first)
        baseline = grade(first, goal)
        warnings = warnings_of(features, goal, baseline)
        teller.goal(goal, why, warnings)
        recorder.goal = goal
        predictor = Predictor(Grader(judging.twin, goal), asked.ray_address, on_done=teller.simulating)
        problem = _problem(asked, judging, first, features, Remembered(predictor), goal)
        problem = replace(problem, highest_rung=rung_of(highest_load(features, baseline)))
        conclusion, is_interrupted = _search(asked, judging, recorder, problem, teller)
        if judging.server is not None:
            judging.server.close()  # nothing more is measured
        teller.say("the answer, and what the twin says around it")
        view = view_of(problem, recorder.runs())
        pools = None if is_interrupted else _pools(asked, judging, view, teller)
        return Tuning(
            goal=goal,
            goal_why=why,
            server=server_of(asked.target, judging, conclusion),
            traffic=said_traffic(judging, features, warnings),
            runs=tuple(recorder.runs()),
            conclusion=conclusion,
            details=tuple(detail_of(journal, made) for made in journal.runs),
            explanation=explain(view, conclusion.contender or START, conclusion.load),
            advice=advice_of(asked.target, view, conclusion),
            pools=pools,
            twin=twin_words(judging),
            twin_s=predictor.took_s,
            is_interrupted=is_interrupted,
            journal=str(journal.folder),
            versions=first.versions,
            seed=asked.wishes.seed,
        )


def _search(
    asked: Asked, judging: Judging, recorder: Recorder, problem: Problem, teller: Teller
) -> tuple[Conclusion, bool]:
    """And whether it was interrupted; then the conclusion is of the runs until then."""
    teller.begin(problem, recorder.runs(), judging.journal.runs)
    most = asked.time.max_trials
    if not asked.target.restarts:
        most = min(most or BASELINE_RUNS, BASELINE_RUNS)
    margin_s = judging.survey.around_s if asked.target.restarts else 0.0
    budget = Budget(asked.time.ends_at - margin_s, most)
    try:
        return drive(problem, recorder, budget, time.monotonic, teller, recorder.runs()), False
    except KeyboardInterrupt:
        if judging.server is not None:
            judging.server.close()
        if len(recorder.runs()) < BASELINE_RUNS:
            raise
        teller.say("interrupted; the same command goes on from here")
        step = next_trial(problem, recorder.runs(), Room(0))
        assert isinstance(step, Conclusion), "without room for a run there is nothing but the end"
        return step, True


def _pools(asked: Asked, judging: Judging, view: View, teller: Teller) -> PoolAdvice | None:
    def predictor_of(grader: Grader) -> Predictor:
        return Predictor(grader, asked.ray_address, on_done=teller.simulating)

    return pools_advice(asked.target, view.problem, view.pace, judging.twin, predictor_of)


# --- what is judged, and by whom -----------------------------------------------------------------


@contextlib.contextmanager
def _judging(asked: Asked, journal: Journal, teller: Teller) -> Generator[Judging]:
    """Survey the target, or take the survey from the journal."""
    of_file = None if asked.workload is None else traffic_of_file(asked.workload, asked.part)
    wishes = asked.wishes if of_file is None else None
    survey = None if journal.survey is None else msgspec.json.decode(journal.survey, type=Survey)
    if isinstance(asked.target, TwinTarget):
        survey, cost = survey_of_twin(asked.target, wishes)
        traffic = of_file or traffic_of(survey)
        assert traffic is not None, "a file or a mix"
        twin = twin_server(survey, cost, traffic.requests, traffic.said)
        yield Judging(journal, survey, traffic, twin, TwinJudge(asked.target, twin), None)
        return
    with ServerJudge(asked.target, teller.console, asked.wishes.seed, asked.api_key) as judge:
        if survey is None or not journal.cost.exists():
            survey, cost = survey_of(judge, asked.time, wishes, teller.say)
            save(cost, journal.cost)
            journal.keep_survey(survey)
        else:
            teller.resumed(journal)
            cost = load_cost(str(journal.cost))
        traffic = of_file or traffic_of(survey)
        assert traffic is not None, "a file or a mix"
        max_model_len = survey.start.get("max_model_len")
        require_room(traffic, None if max_model_len is None else int(max_model_len))
        judge.traffic = traffic
        twin = twin_server(survey, cost, traffic.requests, traffic.said)
        yield Judging(journal, survey, traffic, twin, judge, judge)


# --- baseline, goal, problem ---------------------------------------------------------------------


def _first_baseline(asked: Asked, judging: Judging, recorder: Recorder, teller: Teller) -> Measurement:
    """The start under the workload's own load; under less of the fitted mix where it falls behind.

    Raises `TargetFailed` where it gives no result.
    """
    journal = judging.journal
    for lighter_loads in range(MOST_LIGHTER_LOADS, -1, -1):
        if journal.runs:
            break
        wanted = Wanted(START, 1.0, Purpose.BASELINE, "the server as it is")
        teller.starting(wanted, 1)
        began = time.monotonic()
        judged = recorder.judge(wanted, 1)
        mix, server = judging.survey.mix, judging.server
        may_lighten = lighter_loads > 0 and server is not None and not asked.wishes.fix_rates
        seen = judged.measurement
        if may_lighten and mix is not None and seen is not None and not keeps_up(mix, seen.duration_s):
            _lighten(asked, judging, seen, teller)
            continue
        recorder.keep(wanted, judged, time.monotonic() - began)
    measurement = journal.measurement(journal.runs[0])
    if measurement is None:
        raise TargetFailed(f"the starting settings gave no result: {journal.runs[0].failed}")
    judging.twin = replace(judging.twin, requests=judging.traffic.as_counted(measurement))
    return measurement


def _lighten(asked: Asked, judging: Judging, measurement: Measurement, teller: Teller) -> None:
    assert judging.survey.mix is not None, "only of a mix that was fitted"
    assert judging.server is not None, "and measured on a server"
    mix = lighter(judging.survey.mix, measurement.duration_s)
    left_s = asked.time.ends_at - time.monotonic()
    mix = timed(mix, left_s, judging.survey.around_s, asked.time.max_trials)
    took_s = judging.survey.took_s + measurement.duration_s  # it counts, though it is no run
    judging.survey = replace(judging.survey, mix=mix, took_s=took_s)
    judging.journal.keep_survey(judging.survey)
    traffic = traffic_of(judging.survey)
    assert traffic is not None, "a mix is traffic"
    judging.traffic = judging.server.traffic = traffic
    judging.twin = replace(judging.twin, requests=traffic.requests, says=traffic.said)
    teller.lighter(measurement.duration_s, traffic)


def _problem(
    asked: Asked,
    judging: Judging,
    first: Measurement,
    features: Features,
    twin: Remembered,
    goal: Goal,
) -> Problem:
    made, reuse = judging.journal.runs[0], features.reuse
    with_kv = kv_binds(first, made.preemptions)
    has = asked.target.has(judging.survey.facts, spare_cpus=spare_cpus(made.busy_cores))
    site = site_of(judging.survey, judging.twin.cost, has.policies, with_kv=with_kv)
    demand = demand_of((each.prompt_tokens, each.output_tokens) for each in judging.twin.requests)
    shared = reuse.token_share if reuse is not None else 0.0 if asked.workload is None else None
    return Problem(goal, space_of(site, demand), twin, further_levers(has, shared))


def _goal(asked: Asked, features: Features, first: Measurement) -> tuple[Goal, str]:
    """As asked; else what suits the workload. Raises `BadInput` for a class that nobody is of."""
    classes = {result.request_class for result in first.measured}
    strangers = {each.request_class for each in asked.objectives} | {asked.request_class or ""}
    for name in sorted(strangers - classes - {""}):
        there = ", ".join(sorted(classes))
        raise BadInput(f"no request is of the class {name!r}", f"the workload has {there}")
    if asked.objectives:
        goal = Goal(asked.aim or Aim.CAPACITY, asked.objectives, price_per_hour=asked.price_per_hour)
        return goal, ""
    name = asked.request_class or (SHORT if asked.workload is None else None)
    if name is not None and asked.aim in {None, Aim.LATENCY}:
        why = f"no --slo was given, so {name} requests shall wait less than they do now"
        return relative_to([first], name), why
    goal, why = propose_goal(features, [first], asked.aim)
    return replace(goal, price_per_hour=asked.price_per_hour), why


def _features(judging: Judging, traffic: Traffic) -> Features:
    path = judging.journal.folder / "workload.jsonl"
    write_workload(path, About(traffic.said, prefix_block_tokens=_block_tokens(traffic)), traffic.requests)
    with open_trace(path) as stream:
        return describe(collect(stream))


def _block_tokens(traffic: Traffic) -> int:
    return max((each.prefix_block_tokens for each in traffic.requests), default=0)
