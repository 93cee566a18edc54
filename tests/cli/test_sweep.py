"""Sweeps: one row for each combination, whatever runs them, and an error is a row."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.pool import Unjudged, judge_in_processes, product_of
from headrace.core.errors import BadInput
from headrace.core.ports import Overrides
from tests.cli.test_simulate_command import COST, workload


@dataclass(frozen=True, slots=True)
class Doubling:
    """Refuses 3, and dies of 13."""

    def __call__(self, overrides: Overrides) -> int:
        number = int(overrides["number"])
        if number == 3:
            raise BadInput("3 is refused")
        if number == 13:
            os._exit(1)
        return 2 * number


def numbers(*each: int) -> list[Overrides]:
    return [{"number": number} for number in each]


def sweep(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", str(path), *COST, *arguments])


def test_combinations_change_the_last_name_fastest() -> None:
    assert product_of([("a", [1, 2]), ("b", [3, 4])]) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]


@pytest.mark.slow
def test_results_come_in_the_order_asked_and_an_error_is_one_of_them() -> None:
    done: list[int] = []
    assert judge_in_processes(Doubling(), numbers(5, 3, 1), 2, done.append) == [
        10,
        Unjudged("3 is refused"),
        2,
    ]
    assert done == [1, 2, 3]


@pytest.mark.slow
def test_a_worker_that_dies_is_a_result_too() -> None:
    (result,) = judge_in_processes(Doubling(), numbers(13), 1, lambda done: None)
    assert isinstance(result, Unjudged)
    assert "died" in result.cause


@pytest.mark.slow
def test_a_sweep_says_the_same_however_many_workers_there_are(tmp_path: Path) -> None:
    asked = ("--sweep", "max_num_batched_tokens=64,1k", "--sweep", "max-num-seqs=32,128", "--json")
    one, two = (sweep(workload(tmp_path), *asked, "--workers", count) for count in ("1", "2"))
    assert one.exit_code == 0, one.output
    assert one.stdout == two.stdout
    assert "4 of 4 simulations done" in one.stderr
    assert max(map(len, one.stdout.splitlines()[:-1])) <= 80
    rows = json.loads(one.stdout.splitlines()[-1])
    assert [row["settings"] for row in rows if row["verdict"] is None] == [
        {"max_num_batched_tokens": 64, "max_num_seqs": 128}
    ]
    assert rows[0]["verdict"] == "kept_up"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sweep", "no_such=1,2"], "write NAME=VALUE,VALUE"),
        (["--sweep", "max_num_seqs"], "write NAME=VALUE,VALUE"),
        (["--sweep", "max_num_seqs=1,x"], "'x' is not a valid integer"),
        (["--sweep", "max_num_seqs=1", "--sweep", "max_num_seqs=2"], "names max_num_seqs twice"),
        (["--sweep", "max_num_seqs=" + ",".join(["1"] * 10_001)], "10,001 simulations"),
        (["--sweep", "max_num_seqs=1,2", "--workers", "0"], "0 workers"),
        (["--sweep", "max_num_seqs=1,2", "--output", "x.jsonl"], "--output is not"),
        (["--workers", "2"], "are of a --sweep"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = sweep(workload(tmp_path), *arguments)
    assert result.exit_code == 2, result.output
    assert re.search(complaint, result.stderr), result.stderr


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_person_is_told_how_to_get_it(tmp_path: Path) -> None:
    result = sweep(workload(tmp_path), "--sweep", "max_num_seqs=1,2", "--ray", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "headrace[ray]" in result.stderr


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of a Ray cluster of two nodes on this machine, one core each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    start = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1")
    head = (*start, "--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false")
    nodes = [subprocess.Popen(head, stdout=subprocess.DEVNULL)]
    try:
        ray = import_module("ray")
        nodes.append(subprocess.Popen((*start, f"--address={address}"), stdout=subprocess.DEVNULL))
        while True:  # until the test's own time is up
            assert all(node.poll() is None for node in nodes), "a node has left"
            try:
                ray.init(address=address, log_to_driver=False)
            except ConnectionError:
                continue
            alive = sum(node["Alive"] for node in ray.nodes())
            ray.shutdown()
            if alive == 2:
                break
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_over_two_nodes_of_ray_a_sweep_says_what_processes_say(tmp_path: Path, two_nodes: str) -> None:
    asked = ("--sweep", "max_num_seqs=2,16,64", "--sweep", "max_num_batched_tokens=64,1k", "--json")
    over_ray = sweep(workload(tmp_path), *asked, "--ray", two_nodes)
    assert over_ray.exit_code == 0, over_ray.output
    assert over_ray.stdout == sweep(workload(tmp_path), *asked).stdout
