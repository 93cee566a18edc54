"""What a tuning would do and how long it would take, before anything is started (`--dry-run`)."""

from pathlib import Path

from headrace.cli.tuning import BASELINE_RUNS, Asked
from headrace.cli.tuning_survey import DRAIN_S, EMBEDDED_CALIBRATE_S, URL_CALIBRATE_S
from headrace.cli.tuning_targets import EmbeddedTarget, TwinTarget
from headrace.cli.tuning_telling import AIMS, clock
from headrace.cli.tuning_workload import WORTHWHILE_RUNS, traffic_of_file
from headrace.core.goal import Aim

USUAL_RUNS = 8
"""Baselines, candidates and repeats until an answer is clear, as a rule."""
SHORTEST_RUN_S = 12.0


def plan_text(asked: Asked, journal: Path) -> str:
    """80 columns. Raises `BadInput` for a workload that cannot be read."""
    target = asked.target
    lines = [f"Target: {target.name}"]
    if asked.objectives:
        lines.append(f"Goal: {'; '.join(map(str, asked.objectives))}")
        lines.append(f"  and with that, {AIMS[asked.aim or Aim.CAPACITY]}")
    else:
        lines.append("Goal: proposed from the baseline, since no --slo is given")
    run_s: float | None = None
    if asked.workload is None:
        lines.append("Workload: short chats among long documents, fitted to the server")
    else:
        traffic = traffic_of_file(asked.workload, asked.part)
        run_s = traffic.duration_s
        lines.append(f"Workload: {traffic.said}")
    if isinstance(target, TwinTarget):
        lines.append("Nothing is started: every run is a simulation.")
    else:
        lines += _steps(asked, run_s)
    lines.append(f"Journal: {journal}")
    return "\n".join(lines)


def _steps(asked: Asked, run_s: float | None) -> list[str]:
    target, budget_s = asked.target, asked.time.budget_s
    usual_s = EMBEDDED_CALIBRATE_S if isinstance(target, EmbeddedTarget) else URL_CALIBRATE_S
    calibrate_s = asked.time.calibrate_s(usual_s)
    runs = min(USUAL_RUNS, asked.time.max_trials or USUAL_RUNS)
    around_s = target.start_s + DRAIN_S
    if not target.restarts:
        runs = BASELINE_RUNS
    if run_s is None:
        left_s = budget_s - calibrate_s - around_s
        run_s = max(SHORTEST_RUN_S, left_s / WORTHWHILE_RUNS[0] - around_s)
    expected_s = calibrate_s + around_s + runs * (run_s + around_s)
    lines = [
        f"1. Look at the server and calibrate its twin: about {clock(calibrate_s + around_s)}",
        f"2. Measure it as it is, twice: about {clock(2 * run_s + around_s)}",
    ]
    if target.restarts:
        lines += [
            "3. Search hundreds of settings in the twin: seconds to a minute",
            f"4. Prove the few that matter, in turns with the start: {runs - 2} runs or so of",
            f"   {clock(run_s + around_s)} each, the server started anew for each change",
        ]
    else:
        lines.append("3. Search hundreds of settings in the twin, and advise. It is never restarted.")
    over = "" if expected_s <= budget_s else "; some of it will not fit, and the answer may be inconclusive"
    lines.append(f"Expected: about {clock(expected_s)} of the budget of {clock(budget_s)}{over}")
    return lines
