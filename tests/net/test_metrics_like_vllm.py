"""Our /metrics beside a real scrape of vLLM 0.32, series by series; and read by Prometheus' own parser."""

import os
import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.net.http import get, post
from tests.net.serving import running, service

SHARED = os.environ.get("HEADRACE_SHARED")

NOT_HERE = {
    "vllm:engine_sleep_state": "there is no sleep mode",
    "vllm:external_prefix_cache_queries": "there is no KV connector",
    "vllm:external_prefix_cache_hits": "there is no KV connector",
    "vllm:mm_cache_queries": "neither images nor sound are taken",
    "vllm:mm_cache_hits": "neither images nor sound are taken",
    "vllm:estimated_flops_per_gpu": "there is no GPU, and without --enable-mfu-metrics it is 0 in vLLM too",
    "vllm:estimated_read_bytes_per_gpu": "as for the flops",
    "vllm:estimated_write_bytes_per_gpu": "as for the flops",
}
OPT_IN_THERE = {
    "vllm:kv_block_lifetime_seconds",
    "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_reuse_gap_seconds",
}
LENGTH_DEPENDENT = {
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
}
LABEL_VALUES_DIFFER = {"vllm:cache_config_info", "python_info"}

Families = dict[str, Metric]


def parsed(text: str) -> Families:
    """`_created` is a gauge of its own in this format; with its counter it says nothing new."""
    found = {family.name: family for family in text_string_to_metric_families(text)}
    return {name: family for name, family in found.items() if not name.endswith("_created")}


def created(text: str) -> set[str]:
    return {f.name for f in text_string_to_metric_families(text) if f.name.endswith("_created")}


@pytest.fixture(scope="module")
def text() -> str:
    """After the same paths that were asked when vLLM's sample was taken."""
    with running(service()) as server:
        assert post(server.port, "/tokenize", {"prompt": "a"}).status == 200
        assert post(server.port, "/v1/completions", {"prompt": "abc", "max_tokens": 2}).status == 200
        return get(server.port, "/metrics").body.decode()


@pytest.fixture(scope="module")
def theirs() -> str:
    if SHARED is None:
        pytest.skip("HEADRACE_SHARED does not say where real scrapes of vLLM are")
    return (Path(SHARED) / "vllm_samples" / "metrics_0.32_after_preempt_abort.txt").read_text()


def labels(family: Metric) -> set[frozenset[tuple[str, str]]]:
    """The label sets it comes in, bucket edges among them, without what differs from server to server."""
    edges_too = family.name not in LENGTH_DEPENDENT
    return {
        frozenset(
            (label, "" if label == "model_name" else value)
            for label, value in sample.labels.items()
            if label != "le" or edges_too
        )
        for sample in family.samples
    }


def test_every_series_of_vllm_is_here_or_has_a_reason_not_to_be(text: str, theirs: str) -> None:
    ours, real = parsed(text), parsed(theirs)
    assert set(real) - set(ours) == set(NOT_HERE)
    assert {name for name in set(ours) - set(real) if not name.startswith("headrace:")} == OPT_IN_THERE
    missing = {name.removesuffix("_created") for name in created(theirs) - created(text)}
    assert missing == {name for name in NOT_HERE if name != "vllm:engine_sleep_state"}


def test_types_labels_and_edges_are_vllms(text: str, theirs: str) -> None:
    ours, real = parsed(text), parsed(theirs)
    for name in sorted(set(ours) & set(real)):
        assert ours[name].type == real[name].type, name
        if name not in LABEL_VALUES_DIFFER:
            assert labels(ours[name]) == labels(real[name]), name
        assert ours[name].samples[0].labels.keys() <= real[name].samples[0].labels.keys(), name


def test_prometheus_own_parser_reads_every_line_and_every_histogram_adds_up(text: str) -> None:
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    families = list(text_string_to_metric_families(text))
    assert sum(len(family.samples) for family in families) == len(samples)
    histograms = [family for family in families if family.type == "histogram"]
    assert len(histograms) > 20
    for family in histograms:
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        values = [sample.value for sample in buckets]
        if "handler" not in buckets[0].labels:
            assert values == sorted(values), family.name
            assert family.samples[len(buckets)].value == values[-1], family.name


def test_every_series_is_in_the_manual(text: str) -> None:
    """And nothing else: a manual that lists what is gone is worse than none."""
    exported = {
        family.name + ("_total" if family.type == "counter" else "") for family in parsed(text).values()
    }
    manual = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    parts = manual.split("## Not here")
    here, not_here = (set(re.findall(r"^\| `([\w:]+)`", part, re.MULTILINE)) for part in parts)
    http = {name for name in exported if name.startswith("http_")}
    assert here == http | {name for name in exported if name.startswith(("vllm:", "headrace:"))}
    assert not here & not_here
    for name in NOT_HERE:
        assert name.removeprefix("vllm:").removesuffix("_hits") in parts[1]
