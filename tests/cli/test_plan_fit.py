"""`headrace plan --fit`: what twins of cards promise, and how they are ranked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.plan import Asked, Plan, plan_of
from headrace.cli.main import main
from headrace.cli.plan_fit import FitJudge, usual_requests
from headrace.core.objective import parse_objectives
from headrace.report.plan_fit import Fit, ranked
from headrace.workload.trace import TraceRequest

GOALS = parse_objectives("p95 ttft < 1s, p95 itl < 200ms")


def plan_on(gpu: str, size: int = 1) -> Plan:
    return plan_of(Deployment(model_named("llama-3.2-1b"), gpu_named(gpu), size), Asked(4096))


def fit(gpu: str, rate: float | None, replicas: int | None = None, size: int = 1) -> Fit:
    return Fit(plan_on(gpu, size), rate, False, 0.1, 0.01, replicas)


def plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)], env={"COLUMNS": "80"})


def test_fewest_gpus_come_first_and_what_meets_nothing_last() -> None:
    found = ranked([fit("l4", None), fit("t4", 2.0, 9), fit("h100", 30.0, 1), fit("a100", 20.0, 1, size=2)])
    assert [each.plan.deployment.gpu.name for each in found] == ["h100", "a100-80", "t4", "l4"]


def test_without_a_workload_the_rate_of_one_gpu_decides() -> None:
    found = ranked([fit("h100", 30.0, size=2), fit("a100", 20.0)])
    assert [each.plan.deployment.gpu.name for each in found] == ["a100-80", "h100"]


def test_goals_that_cannot_be_read_are_refused_before_anything_runs() -> None:
    result = plan("llama-3.2-1b", "--gpu", "h100", "--fit", "--slo", "fast")
    assert result.exit_code == 2
    assert "is no objective" in result.stderr


def test_a_model_that_fits_nowhere_is_refused_before_anything_runs() -> None:
    result = plan("llama-3.1-405b", "--gpu", "t4", "--fit")
    assert result.exit_code == 2
    assert "fits on none of these cards" in result.stderr


def test_only_as_many_gpus_are_simulated_as_are_asked_for() -> None:
    result = plan("llama-3.2-1b", "--gpu", "t4", "-tp", "2", "--fit", "--slo", "p95 ttft < 1ms", "--json")
    (found,) = json.loads(result.stdout.splitlines()[-1])["fits"]
    assert found["plan"]["gpu"]["count"] == 2


def test_requests_without_a_rate_are_refused() -> None:
    at_once = (TraceRequest(0.0, 10, 10), TraceRequest(0.0, 10, 10))
    with pytest.raises(Exception, match="no rate"):
        FitJudge(at_once, GOALS, counts_replicas=False)(plan_on("h100"))


@pytest.mark.slow
def test_a_faster_card_promises_more_within_the_goals() -> None:
    requests = tuple(replace(each, output_tokens=min(each.output_tokens, 40)) for each in usual_requests())
    slow, fast = (FitJudge(requests, GOALS, counts_replicas=True)(plan_on(gpu)) for gpu in ("l4", "h100"))
    assert slow.rate is not None
    assert fast.rate is not None
    assert fast.rate > 2 * slow.rate
    assert fast.replicas == 1
    assert fast.itl_p95_s is not None
    assert fast.itl_p95_s < 0.2


@pytest.mark.slow
def test_it_ranks_the_degrees_of_one_card(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = ({"timestamp": 200 * n, "input_length": 200, "output_length": 20} for n in range(200))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = plan("llama-3.2-1b", "--gpu", "l4", "--fit", "--workload", path, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1])
    assert said["fits"][0]["gpus"] == 1
    assert all(each["replicas"] == 1 for each in said["fits"])
