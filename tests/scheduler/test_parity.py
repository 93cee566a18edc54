"""Our decisions against those of vLLM 0.32's own scheduler, as stored by `python -m bench.parity --store`.

Broke, when it did: nothing yet. It catches what unit tests of single rules cannot: the order in
which rules meet, over whole runs, block ids and free-queue order included.
"""

import json
from pathlib import Path

import pytest

from bench.parity.decisions import our_decisions
from bench.parity.peer import whole
from tests.traces import as_of, make_trace, read_trace

STORED = Path(__file__).parent / "stored"
DIGESTS: dict[str, str] = json.loads((STORED / "digests.json").read_text())
QUICK = 25


def assert_decides_like_vllm(seed: str) -> None:
    ours = whole([step.digest() for step in our_decisions(make_trace(int(seed)))])
    assert ours == DIGESTS[seed], f"trace {seed}: run `python -m bench.parity --seed {seed} --traces 1`"


def test_the_first_stored_traces_are_decided_as_vllm_decides_them() -> None:
    for seed in list(DIGESTS)[:QUICK]:
        assert_decides_like_vllm(seed)


@pytest.mark.slow
def test_every_stored_trace_is_decided_as_vllm_decides_it() -> None:
    for seed in list(DIGESTS)[QUICK:]:
        assert_decides_like_vllm(seed)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(STORED.glob("digests-*.json")), ids=lambda path: path.stem)
def test_what_an_earlier_vllm_decided_is_decided_as_its_rules_say(path: Path) -> None:
    version = path.stem.removeprefix("digests-")
    answers: dict[str, str] = json.loads(path.read_text())
    for seed, answer in answers.items():
        trace = as_of(version, make_trace(int(seed)))
        ours = whole([step.digest() for step in our_decisions(trace)])
        assert ours == answer, f"trace {seed} as of {version}"


@pytest.mark.parametrize("path", sorted(STORED.glob("mismatch-*.json")), ids=lambda path: path.stem)
def test_a_trace_that_once_differed_is_decided_as_vllm_decides_it(path: Path) -> None:
    stored = read_trace(path)
    assert whole([step.digest() for step in our_decisions(stored.trace)]) == stored.vllm
