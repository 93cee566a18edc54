"""ServeGen's folders: as many requests, as regular and as long, as the files say; seeded."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import BadInput
from headrace.workload.columns import Columns, collect
from headrace.workload.readers import open_trace, read_trace
from headrace.workload.slices import ALL, Slice

TRACE = """0,20,0.5,Gamma,4.0,0.0125
600,0,0,,0,0
1200,5,2.0,Weibull,0.5427,0.1
"""
DATASET = {"0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{7: 1.0}", "reason_ratio": "{}"}}


def folder_of(parent: Path, trace: str = TRACE, dataset: object = DATASET) -> Path:
    folder = parent / "servegen"
    folder.mkdir()
    (folder / "chunk-3-trace.csv").write_text(trace)
    (folder / "chunk-3-dataset.json").write_text(json.dumps(dataset))
    return folder


def columns_of(folder: Path, part: Slice = ALL, seed: int = 0) -> Columns:
    with open_trace(folder, part=part, seed=seed) as stream:
        return collect(stream)


def test_rates_regularity_and_lengths_are_those_of_the_windows(tmp_path: Path) -> None:
    columns = columns_of(folder_of(tmp_path))
    at_s = columns.at_ns / 1e9
    first, last = at_s[at_s < 600], at_s[at_s >= 1200]
    assert len(first) + len(last) == len(at_s), "nothing comes in the window without a rate"
    for part, rate, cv in ((first, 20, 0.5), (last, 5, 2.0)):
        deviation = cv * (rate * 600) ** 0.5
        assert len(part) == pytest.approx(rate * 600, abs=4 * deviation)
        gaps = np.diff(part)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.15)
    assert set(columns.prompt_tokens.tolist()) == {10, 20}
    assert (columns.prompt_tokens == 20).mean() == pytest.approx(0.75, abs=0.02)
    assert columns.tenants == {"client-3": len(at_s)}


def test_a_client_is_the_same_whoever_else_is_there(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    alone = read_trace(folder, part=Slice(until_s=60)).requests
    assert read_trace(folder, part=Slice(until_s=60)).requests == alone
    (folder / "chunk-5-trace.csv").write_text(TRACE)
    (folder / "chunk-5-dataset.json").write_text(json.dumps(DATASET))
    with open_trace(folder) as stream:
        both = [row for row in (next(stream.rows) for _ in range(1000)) if row.tenant == "client-3"]
    assert [row.prompt_tokens for row in both[:200]] == [r.prompt_tokens for r in alone[:200]]
    with open_trace(folder, seed=1) as stream:
        assert next(stream.rows).at_ns != both[0].at_ns


@pytest.mark.parametrize(
    ("trace", "dataset", "complaint"),
    [
        ("", DATASET, "trace.csv is empty"),
        ("0,1", DATASET, "trace.csv, line 1: 2 fields of 6"),
        ("0,-1,0,Gamma,1,1", DATASET, "line 1: -1 requests a second; it must be 0 or more"),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1", DATASET, "line 2: a window from 0 s after one from 0 s"),
        ("0,1,1,Pareto,1,1", DATASET, "gaps of a 'Pareto' distribution"),
        ("0,1,1,Gamma,0,1", DATASET, "of shape 0"),
        (TRACE, {"0": {"input_tokens": "{}", "output_tokens": "{7: 1.0}"}}, "no input_tokens"),
        (TRACE, [1], "is no dataset of ServeGen"),
        (TRACE, {}, "names no window"),
        ("0,0,0,,0,0", DATASET, "holds no request"),
    ],
)
def test_broken_folders_are_refused_with_the_file(
    tmp_path: Path, trace: str, dataset: object, complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        read_trace(folder_of(tmp_path, trace, dataset))


def test_a_folder_without_chunks_or_datasets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no chunk"):
        read_trace(tmp_path)
    folder = folder_of(tmp_path)
    (folder / "chunk-3-dataset.json").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        read_trace(folder)
