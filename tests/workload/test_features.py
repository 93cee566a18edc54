"""What is said of a workload is what counting one request after another gives."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.workload.columns import Columns, collect
from headrace.workload.features import describe, timing_of
from headrace.workload.outline import by_length, over_time
from headrace.workload.own_form import write_workload
from headrace.workload.readers import open_trace
from headrace.workload.shared import SharedPrefixes
from headrace.workload.trace import About, TraceRequest


def columns_of(folder: Path, requests: list[TraceRequest], block_tokens: int = 16) -> Columns:
    path = folder / "workload.jsonl"
    write_workload(path, About(prefix_block_tokens=block_tokens), requests)
    with open_trace(path) as stream:
        return collect(stream)


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRequest]:
    at_ms = sorted(draw(st.lists(st.integers(0, 20_000), min_size=1, max_size=30)))
    families = [tuple(range(100 * family, 100 * family + 10)) for family in range(3)]
    requests: list[TraceRequest] = []
    for at in at_ms:
        shared = draw(st.integers(0, 9))
        requests.append(
            TraceRequest(
                due_at=at / 1000,
                prompt_tokens=shared * 16 + draw(st.integers(1, 100)),
                output_tokens=draw(st.integers(1, 500)),
                request_class=draw(st.sampled_from(["chat", "docs"])),
                prefix_ids=draw(st.sampled_from(families))[:shared],
                tenant=draw(st.sampled_from(["", "a", "b"])),
            )
        )
    return requests


@given(workloads(), st.integers(1, 200), st.floats(0.001, 1))
def test_the_features_are_those_of_counting_by_hand(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest], long: int, token_s: float
) -> None:
    features = describe(columns_of(tmp_path_factory.mktemp("w"), requests), long, token_s)
    prompts = [r.prompt_tokens for r in requests]
    longs = [tokens for tokens in prompts if tokens > long]
    assert features.requests == len(requests)
    assert features.prompt.mean == pytest.approx(fmean(prompts))
    assert features.long_prompts.share == pytest.approx(len(longs) / len(prompts))
    assert features.long_prompts.token_share == pytest.approx(sum(longs) / sum(prompts))
    ends_ns = [round(r.due_at * 1e9) + int(r.output_tokens * token_s * 1e9) for r in requests]
    at_once = [sum(end > round(r.due_at * 1e9) for end in ends_ns[: i + 1]) for i, r in enumerate(requests)]
    assert features.concurrency.peak == max(at_once)
    assert sum(mix.share for mix in features.classes) == pytest.approx(1)
    assert sum(mix.token_share for mix in features.classes) == pytest.approx(1)
    assert (features.reuse is None) == (not any(r.prefix_ids for r in requests))
    if features.reuse is not None:
        seen, hits, shared = set[int](), 0, 0
        for request in requests:
            known = len(set(request.prefix_ids) & seen)
            hits += known
            shared += min(16 * known, request.prompt_tokens - 1)
            seen.update(request.prefix_ids)
        assert features.reuse.block_share == pytest.approx(hits / sum(len(r.prefix_ids) for r in requests))
        assert features.reuse.token_share == pytest.approx(shared / sum(prompts))


@given(workloads())
def test_the_picture_leaves_nobody_out(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]
) -> None:
    columns = columns_of(tmp_path_factory.mktemp("w"), requests)
    shape = over_time(columns, 10)
    assert len(shape.total()) == 10
    assert sum(shape.total()) * shape.bin_s == pytest.approx(len(requests))
    bars = by_length(columns.prompt_tokens)
    assert sum(bar.share for bar in bars) == pytest.approx(1)
    assert sum(bar.token_share for bar in bars) == pytest.approx(1)
    assert [bar.up_to for bar in bars[:-1]] == [bar.over for bar in bars[1:]]
    longest = max(r.prompt_tokens for r in requests)
    assert bars[-1].over < longest <= bars[-1].up_to


def test_dispersion_and_correlation_are_as_the_arrivals_tool_counts_them(tmp_path: Path) -> None:
    at = [0.0, 0.1, 0.2, 1.5, 1.6, 3.9, 4.0, 4.1, 6.05]
    gaps = [b - a for a, b in pairwise(at)]
    mean = fmean(gaps)
    counts = [3, 2, 0, 1, 2, 0]  # whole seconds only: the last request ends the last of them
    correlation = sum((a - mean) * (b - mean) for a, b in pairwise(gaps)) / sum((g - mean) ** 2 for g in gaps)
    timing = timing_of(columns_of(tmp_path, [TraceRequest(due_at, 1, 1) for due_at in at]).at_ns)
    assert timing.gap_cv == pytest.approx(pstdev(gaps) / mean)
    assert timing.dispersion == pytest.approx(pstdev(counts) ** 2 / fmean(counts))
    assert timing.autocorrelation == pytest.approx(correlation)
    assert (timing.peak_1s, timing.instants) == (3, 9)


@pytest.mark.parametrize("at", [[0.0], [1.0, 1.0], [0.0, 0.0, 9.0]])
def test_few_requests_and_those_of_one_instant_have_features_too(tmp_path: Path, at: list[float]) -> None:
    features = describe(columns_of(tmp_path, [TraceRequest(due_at, 5, 5) for due_at in at]))
    assert features.requests == len(at)
    assert features.timing.duration_s == at[-1] - at[0]
    assert features.concurrency.peak >= 1


def test_reuse_is_estimated_well_when_only_a_part_of_the_ids_is_watched() -> None:
    """Every second request repeats all blocks of the one before; no more ids are kept than allowed."""
    few = SharedPrefixes(most_ids=2000)
    for number in range(4000):
        ids = tuple(range(number // 2 * 10, number // 2 * 10 + 10))
        few.shared_tokens(ids, 10_000, 16)
        assert len(few._seen) <= 2000
    assert few.blocks == 40_000
    assert few.hits / few.blocks == pytest.approx(0.5, abs=0.03)
