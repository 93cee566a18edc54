"""Cost models by name and from files: what is written is read, and what is broken is refused."""

import json
import pickle
from pathlib import Path

import pytest

from headrace.capacity.gpus import Dtype
from headrace.capacity.roofline import Multipliers, Roofline
from headrace.cli.costs import deployment_named, load_cost, save
from headrace.core.cost import Machine, Residual, StepShape
from headrace.core.errors import BadInput
from headrace.executor.cost import FittedCost

MACHINE = Machine("cpu", "smollm2", 2048, 1 << 30, 46080.0, async_scheduling=False)
FITTED = FittedCost(
    {"step": 1_000_000.0, "decode_context_tokens": 12.5, "tokens_over_32": 40_000.0},
    Residual(120, 0.02, 0.11),
    {"from": "a test"},
    MACHINE,
)
SHAPE = StepShape(40, 4000, sampled_seqs=40)


def test_a_name_says_model_weights_card_and_how_many() -> None:
    deployment = deployment_named("Llama-3.1-70B@fp8/h100x4")
    assert deployment.model.name == "llama-3.1-70b"
    assert deployment.weight_dtype is Dtype.FP8
    assert (deployment.gpu.name, deployment.tensor_parallel_size) == ("h100", 4)
    assert deployment_named("deepseek-v3/mi300xx8").devices == "mi300xx8"


def test_a_card_brings_the_limits_that_vllm_would_take() -> None:
    limits = {
        name: (found.max_num_batched_tokens, found.max_num_seqs)
        for name in ("l4", "a100-80", "h100", "b200")
        for found in [deployment_named(f"llama-3.1-8b/{name}")]
    }
    assert limits == {"l4": (2048, 256), "a100-80": (2048, 256), "h100": (8192, 1024), "b200": (16384, 1024)}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("h100", "is no cost model"),
        ("", "is no cost model"),
        ("llama-3.1-8b/gtx-1080", "no GPU 'gtx-1080'"),
        ("llama-9/h100", "no model 'llama-9'"),
        ("llama-3.1-8b@fp3/h100", "no weights of the format 'fp3'"),
        ("llama-3.1-70b/h100", "does not fit"),
        ("llama-3.1-8b/h100x3", "must divide"),
        ("nowhere/to/be/found.json", "cannot be read"),
    ],
)
def test_a_name_that_is_none_is_refused_with_what_to_do(name: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        load_cost(name)


def test_a_fit_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(FITTED, tmp_path / "cpu.json")
    read = load_cost(str(tmp_path / "cpu.json"))
    assert read == FITTED
    assert read.step_ns(SHAPE) == FITTED.step_ns(SHAPE) == 1_000_000 + 50_000 + 8 * 40_000
    assert read.machine == MACHINE
    assert MACHINE.num_gpu_blocks(32) == (1 << 30) // (32 * 46080)


def test_calibrated_first_principles_are_read_as_they_were_written(tmp_path: Path) -> None:
    cost = Roofline(
        deployment_named("llama-3.1-8b/l4"),
        Multipliers(1.1, 1.2, 0.9, 1.0),
        Residual(200, 0.01, 0.3),
        {"by": "me"},
    )
    save(cost, tmp_path / "l4.json")
    read = load_cost(str(tmp_path / "l4.json"))
    assert isinstance(read, Roofline)
    assert (read.multipliers, read.residual, read.provenance) == (
        cost.multipliers,
        cost.residual,
        cost.provenance,
    )
    assert (read.deployment, read.machine) == (cost.deployment, cost.machine)
    assert read.step_ns(SHAPE) == cost.step_ns(SHAPE)


def test_the_cost_of_another_model_is_refused(tmp_path: Path) -> None:
    save(FITTED, tmp_path / "cpu.json")
    assert load_cost(str(tmp_path / "cpu.json"), model="smollm2") == FITTED
    with pytest.raises(BadInput, match="the cost of smollm2, not of llama"):
        load_cost(str(tmp_path / "cpu.json"), model="llama-3.1-8b")


def test_a_cost_model_goes_to_another_process_whole() -> None:
    for cost in (FITTED, Roofline(deployment_named("gpt-oss-20b/l4"))):
        before = cost.step_ns(SHAPE)
        assert pickle.loads(pickle.dumps(cost)).step_ns(SHAPE) == before


@pytest.mark.parametrize("kind", ["fitted", "first principles"])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cost.json"
    save(FITTED if kind == "fitted" else Roofline(deployment_named("llama-3.1-8b/l4")), path)
    whole = path.read_text()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_text(whole[:length])
        with pytest.raises(BadInput, match=r"cost\.json"):
            load_cost(str(path))


def _changed(cost: FittedCost | Roofline, path: Path, change: dict[str, object]) -> None:
    save(cost, path)
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | change))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": "something else"}, "not a cost model of version 1"),
        ({"version": 2}, "not a cost model of version 1"),
        ({"kind": "guess"}, "kind is 'guess'"),
        ({"ns": {"step": float("nan")}}, "step is nan"),
        ({"ns": {"step": float("inf")}}, "step is inf"),
        ({"ns": {"step": -5}}, "step is -5"),
        ({"ns": {"step": "5"}}, "step is '5'"),
        ({"ns": {"step": True}}, "step is True"),
        ({"ns": {"speed": 5}}, "no feature 'speed'"),
        ({"ns": {"tokens_over_-3": 5}}, "no feature 'tokens_over_-3'"),
        ({"ns": {}}, "every rate is 0"),
        ({"ns": [1, 2]}, "ns is not an object"),
        ({"residual": None}, "without the residual"),
        ({"residual": {"median": 1}}, "residual has no 'observations'"),
        ({"provenance": "me"}, "provenance is not an object"),
        ({"machine": {"name": "x", "model": "y", "max_model_len": 0}}, "max_model_len is 0"),
    ],
)
def test_a_fit_with_nonsense_in_it_is_refused(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    _changed(FITTED, tmp_path / "cost.json", change)
    with pytest.raises(BadInput, match=complaint):
        load_cost(str(tmp_path / "cost.json"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"multipliers": {"compute": 1}}, "expected compute, weights, context, overhead"),
        ({"multipliers": dict.fromkeys(Multipliers.names(), 0)}, "compute is 0"),
        ({"multipliers": dict.fromkeys(Multipliers.names(), float("nan"))}, "compute is nan"),
        ({"deployment": {"model": "llama-3.1-8b"}}, "expected async_scheduling"),
        ({"efficiencies": {"compute": 1.5, "bandwidth": 0.5}}, "must lie in"),
        ({"efficiencies": {}}, "must lie in"),
    ],
)
def test_first_principles_with_nonsense_in_them_are_refused(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    _changed(Roofline(deployment_named("llama-3.1-8b/l4")), tmp_path / "cost.json", change)
    with pytest.raises(BadInput, match=complaint):
        load_cost(str(tmp_path / "cost.json"))


def test_a_model_that_is_in_no_catalogue_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    save(Roofline(deployment_named("llama-3.1-8b/l4")), path)
    path.write_text(path.read_text().replace('"llama-3.1-8b"', '"llama-9"'))
    with pytest.raises(BadInput, match="no model 'llama-9'"):
        load_cost(str(path))
    path.write_text(path.read_text().replace('"llama-9"', '"llama-3.1-8b"').replace('"bf16"', '"bf17"'))
    with pytest.raises(BadInput, match="bf17"):
        load_cost(str(path))
