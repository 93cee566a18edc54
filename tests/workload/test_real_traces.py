"""`workload describe` says of real traces what their READMEs say."""

import csv
import os
from pathlib import Path

import pytest

from headrace.workload.columns import Columns, collect
from headrace.workload.features import Features, describe
from headrace.workload.readers import open_trace, read_trace
from headrace.workload.reshape import spread
from headrace.workload.slices import ALL, Slice

SHARED = os.environ.get("HEADRACE_SHARED")
pytestmark = [
    pytest.mark.skipif(SHARED is None, reason="HEADRACE_SHARED does not say where real traces are"),
    pytest.mark.slow,
]
TRACES = Path(SHARED or ".") / "traces"


def columns_of(name: str, part: Slice = ALL) -> Columns:
    with open_trace(TRACES / name, part=part) as stream:
        return collect(stream)


def features_of(name: str) -> Features:
    return describe(columns_of(name))


@pytest.mark.parametrize(
    ("kind", "rows", "duration_s", "clipped_at"),
    [("code", 8819, 3435.9, 7437), ("conv", 19366, 3501.7, 4142)],
)
def test_azure(kind: str, rows: int, duration_s: float, clipped_at: int) -> None:
    features = features_of(f"azure_2023/AzureLLMInferenceTrace_{kind}.csv")
    assert features.requests + features.left_out == rows
    assert round(features.timing.duration_s, 1) == duration_s
    assert features.prompt.p99 <= clipped_at
    assert features.reuse is None


@pytest.mark.parametrize(
    ("piece", "rows", "duration_s", "reuse"), [("head", 1165, 393, 0.231), ("families", 1194, 3531, 0.370)]
)
def test_mooncake(piece: str, rows: int, duration_s: float, reuse: float) -> None:
    features = features_of(f"mooncake_conversation/slice_{piece}_conversation_trace.jsonl")
    assert features.requests == rows
    assert features.timing.duration_s == pytest.approx(duration_s, abs=3)
    assert features.reuse is not None
    assert round(features.reuse.block_share, 3) == reuse


def test_mooncakes_clock_ticks_and_spreading_takes_its_bursts_away() -> None:
    """Its README: CV 3.03 as it is for the whole trace, 1.01 when spread; ten requests a tick."""
    name = "mooncake_conversation/slice_head_conversation_trace.jsonl"
    features = features_of(name)
    assert features.requests / features.timing.instants == pytest.approx(9, abs=1.5)
    assert features.timing.gap_cv == pytest.approx(3, abs=0.3)
    due = [request.due_at for request in spread(read_trace(TRACES / name).requests)]
    assert max(later - due[0] for later in due) <= features.timing.duration_s + 3


@pytest.mark.parametrize(("piece", "sessions"), [("miniswe", 18), ("taubench", 24)])
def test_agents(piece: str, sessions: int) -> None:
    features = features_of(f"agents/slice_{piece}_blk64.jsonl")
    assert features.sessions is not None
    assert features.sessions.count == sessions


def test_agents_of_a_whole_trace() -> None:
    """Of mini-SWE there is a part alone; its README has the whole one's figures."""
    features = features_of("agents/slice_taubench_blk64.jsonl")
    assert features.requests + features.left_out == 471
    assert features.timing.duration_s == pytest.approx(181, abs=1)


def test_a_system_prompt_is_shared_by_all_of_mooncake() -> None:
    requests = read_trace(TRACES / "mooncake_conversation/slice_head_conversation_trace.jsonl").requests
    assert len({request.prefix_ids[0] for request in requests}) == 1


def test_servegen() -> None:
    """81 % of the rate of all clients over the first six hours."""
    columns = columns_of("servegen_deepseek-r1")
    with (TRACES / "servegen_deepseek-r1" / "rates_deepseek-r1.csv").open() as file:
        all_clients = [float(row["total_rate_rps"]) for row in csv.DictReader(file)][:36]
    expected = sum(all_clients) * 600
    assert len(columns.at_ns) / expected == pytest.approx(0.81, abs=0.01)
    assert len(columns.tenants) == 6
