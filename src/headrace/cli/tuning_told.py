"""A tuning as its report wants it: the answer beside what was tuned, with what, and how each run was made."""

import os
import shlex

from headrace.capacity.roofline import Roofline
from headrace.cli.tuning_journal import Journal, Made
from headrace.cli.tuning_recorder import Judging
from headrace.cli.tuning_targets import EmbeddedTarget, Tunable, TwinTarget
from headrace.cli.tuning_telling import remarks_on
from headrace.core.conclusion import Conclusion
from headrace.core.grade import Grade
from headrace.core.ports import Overrides
from headrace.report.tuning.tuning import Advice, RunDetail, Server, Traffic
from headrace.targets.flags import as_flags
from headrace.tune.belief import View
from headrace.tune.evidence import runs_of
from headrace.tune.explore import explore
from headrace.tune.goals import kind_of
from headrace.tune.twin import Point
from headrace.workload.features import Features

START: Overrides = {}


def server_of(target: Tunable, judging: Judging, conclusion: Conclusion) -> Server:
    changed = conclusion.recommended
    also = ()
    if isinstance(target, EmbeddedTarget) and changed and "scheduling_policy" not in changed:
        also = (("the same for vLLM", shlex.join(["vllm", "serve", "MODEL", *as_flags(changed)])),)
    is_elsewhere = isinstance(target, TwinTarget) or not target.restarts
    return Server(
        name=target.name,
        model=judging.survey.model,
        start=judging.survey.start,
        command=target.command(START),
        recommended=target.command(changed),
        also=also,
        restarts=target.restarts,
        headroom_bytes=None if is_elsewhere else judging.survey.headroom_bytes,
        cores=None if isinstance(target, TwinTarget) else os.cpu_count(),
    )


def said_traffic(judging: Judging, features: Features, warnings: tuple[str, ...]) -> Traffic:
    kind, why = kind_of(features)
    return Traffic(
        said=judging.traffic.said,
        features=features,
        kind=kind.value,
        kind_why=why,
        rate_rps=features.timing.rate,
        warnings=warnings,
    )


def detail_of(journal: Journal, made: Made) -> RunDetail:
    return RunDetail(
        journal.measurement(made),
        made.command,
        made.at,
        tuple(remarks_on([made])),
        made.busy_cores,
        made.others_cores,
    )


def twin_words(judging: Judging) -> str:
    """What it was made of, as said after "a twin"."""
    cost = judging.twin.cost
    residual = cost.residual
    if isinstance(cost, Roofline) or residual is None:
        return f"of {judging.survey.model}, from first principles"
    return f"fitted to {residual.observations:,} of its steps, half told within {residual.median:.0%}"


def advice_of(target: Tunable, view: View, conclusion: Conclusion) -> Advice | None:
    """The twin's best, where no run is to prove it, or none was made: what has run speaks for itself."""
    if conclusion.contender is not None:
        return None
    ranking = explore(view.problem, conclusion.pace, is_out=view.is_out)
    best = ranking.best
    if best is None or not best.overrides or ranking.start is None or runs_of(view.runs, best.overrides):
        return None
    both = [Point(each, best.load, conclusion.pace) for each in (START, best.overrides)]
    now, then = view.problem.twin(both)
    if not isinstance(now, Grade) or not isinstance(then, Grade):
        return None
    return Advice(best.overrides, now, then, best.load, target.command(best.overrides))
