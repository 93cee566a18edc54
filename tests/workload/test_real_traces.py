"""`workload describe` says of real traces what their READMEs say."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from headrace.workload.columns import Columns, collect
from headrace.workload.features import Features, describe
from headrace.workload.readers import open_trace, read_trace
from headrace.workload.reshape import spread
from headrace.workload.slices import ALL, Slice
from headrace.workload.two_samples import ks_distance

SHARED = os.environ.get("HEADRACE_SHARED")
pytestmark = [
    pytest.mark.skipif(SHARED is None, reason="HEADRACE_SHARED does not say where real traces are"),
    pytest.mark.slow,
]
TRACES = Path(SHARED or ".") / "traces"
MOONCAKE = "mooncake_conversation"


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
    ("kind", "first", "last", "most"), [("code", 50, 8549, 0.002), ("conv", 10450, 18757, 0.044)]
)
def test_the_pieces_of_azure_have_the_lengths_of_the_whole(
    kind: str, first: int, last: int, most: float
) -> None:
    """Their rows are named, and the larger distance of Kolmogorov and Smirnov of prompts and outputs."""
    columns = columns_of(f"azure_2023/AzureLLMInferenceTrace_{kind}.csv")
    distances = [
        ks_distance(whole.astype(float), whole[first : last + 1].astype(float))
        for whole in (columns.prompt_tokens, columns.output_tokens)
    ]
    assert max(distances) == pytest.approx(most, abs=5e-4)


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


def test_mooncakes_ticks_are_three_seconds_and_jitter_makes_them_poisson() -> None:
    due = [r.due_at for r in read_trace(TRACES / f"{MOONCAKE}/slice_head_conversation_trace.jsonl").requests]
    ticks = np.diff(np.unique(due))
    jittered = np.diff(np.sort(np.array(due) + np.random.default_rng(1).uniform(0, 3, len(due))))

    assert set(np.round(ticks / 3.0)) == {1.0}
    assert np.abs(ticks - 3.0).max() < 0.0015
    assert jittered.std() / jittered.mean() == pytest.approx(1.01, abs=0.1)  # of the whole trace


def test_the_families_of_mooncake_are_a_tenth_of_its_rate() -> None:
    """12,031 rows over 3,537 s in the whole."""
    timing = features_of(f"{MOONCAKE}/slice_families_conversation_trace.jsonl").timing
    assert 12_031 / 3_537 / timing.rate == pytest.approx(10, rel=0.02)


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
