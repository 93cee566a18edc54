"""`/metrics` carries vLLM's names, labels and edges; and what it says is true."""

import os
import re
from pathlib import Path

import pytest

from headrace.core.bill import CAUSES
from headrace.net.metrics import one_two_five
from tests.net.http import get, post
from tests.net.serving import RunningServer, running, service
from tests.net.waiting import wait_until

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """Every sample by name and labels; a format that Prometheus could not read would not parse."""
    series: Series = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            assert match, line
            labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            series[match[1], labels] = float(match[3])
    return series


def scrape(server: RunningServer) -> Series:
    return parse(get(server.port, "/metrics").body.decode())


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset({"model_name": "scripted", "engine": "0", **labels}.items())]


@pytest.fixture(scope="module")
def after() -> Series:
    """The metrics of a server that has answered three requests, two of them alike."""
    with running(service()) as server:
        for tokens in (5, 5, 1):
            text = "a prompt of its own" if tokens == 1 else "the same prompt, longer than one block"
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
            assert post(server.port, CHAT, body).status == 200
        assert post(server.port, CHAT, {"messages": HELLO, "stop": "naïve"}).status == 200
        # The stop string was found outside the engine, which hears of it after its step.
        wait_until(lambda: value(scrape(server), "vllm:num_requests_running") == 0, "the engine rests")
        return scrape(server)


def test_tokens_are_counted(after: Series) -> None:
    prompts = (2 * len("user: the same prompt, longer than one block\nassistant: ")) + (
        len("user: a prompt of its own\nassistant: ") + len("user: Hello\nassistant: ")
    )
    stopped_after = len("The naïve".encode())
    assert value(after, "vllm:prompt_tokens_total") == prompts
    assert value(after, "vllm:generation_tokens_total") >= 11 + stopped_after
    assert value(after, "vllm:prompt_tokens_cached_total") == 48, "three blocks of 16, at the second request"
    assert value(after, "vllm:prefix_cache_hits_total") == 48
    assert value(after, "vllm:prefix_cache_queries_total") == prompts
    assert value(after, "vllm:prompt_tokens_by_source_total", source="local_compute") == prompts - 48
    assert value(after, "vllm:request_prompt_tokens_sum") == prompts
    assert value(after, "vllm:request_prefill_kv_computed_tokens_sum") == prompts - 48


def test_requests_are_counted_by_how_they_ended(after: Series) -> None:
    assert value(after, "vllm:request_success_total", finished_reason="length") == 3
    assert value(after, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(after, "vllm:request_success_total", finished_reason="abort") == 0


def test_latencies_of_all_requests_are_observed(after: Series) -> None:
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert value(after, f"vllm:{name}_seconds_count") == 4
    tokens = value(after, "vllm:generation_tokens_total")
    assert value(after, "vllm:inter_token_latency_seconds_count") == tokens - 4
    assert value(after, "vllm:request_time_per_output_token_seconds_count") == 3, "one had one token"


def test_the_bills_add_up_to_the_time_to_first_token(after: Series) -> None:
    parts = [value(after, "headrace:ttft_seconds_total", cause=cause.value) for cause in CAUSES]
    assert sum(parts) == pytest.approx(value(after, "vllm:time_to_first_token_seconds_sum"), abs=1e-6)


def test_steps_say_how_much_of_the_budget_they_used(after: Series) -> None:
    computed = value(after, "headrace:step_tokens_sum")
    assert computed == value(after, "vllm:iteration_tokens_total_sum")
    assert computed >= value(after, "vllm:prompt_tokens_total") - 48
    assert value(after, "headrace:max_num_batched_tokens") == 256
    assert value(after, "headrace:max_num_seqs") == 32
    assert value(after, "headrace:step_seconds_total", part="plan") > 0
    assert value(after, "headrace:free_blocks") == value(after, "headrace:total_blocks") == 64


def test_every_metric_says_what_it_is(server: RunningServer) -> None:
    text = get(server.port, "/metrics").body.decode()
    ours = set(re.findall(r"^# TYPE ((?:vllm|headrace):\w+)", text, re.MULTILINE))
    helped = {name for name, _ in re.findall(r"^# HELP (\S+) (\S.{10,})$", text, re.MULTILINE)}
    assert ours
    assert ours <= helped


def test_token_counts_have_edges_up_to_the_context_length() -> None:
    assert one_two_five(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert one_two_five(8192)[-1] == 5000


SHARED = os.environ.get("HEADRACE_SHARED")


@pytest.mark.skipif(SHARED is None, reason="HEADRACE_SHARED does not say where real scrapes of vLLM are")
def test_what_vllm_also_has_looks_like_vllms(after: Series) -> None:
    assert SHARED is not None
    real = parse((Path(SHARED) / "vllm_samples" / "metrics_0.32.txt").read_text())
    theirs = shapes(real)
    ours = {name: shape for name, shape in shapes(after).items() if name.startswith("vllm:")}
    assert len(ours) > 60
    assert set(ours) - set(theirs) == set()
    length_dependent = re.compile(r"vllm:request_(prompt|generation|max_num|params_max|prefill_kv)_.*_bucket")
    for name, shape in ours.items():
        if name != "vllm:cache_config_info" and not length_dependent.match(name):
            assert shape == theirs[name], name
    config = {
        label for label, _ in next(labels for name, labels in after if name == "vllm:cache_config_info")
    }
    known = {label for label, _ in next(labels for name, labels in real if name == "vllm:cache_config_info")}
    assert config <= known


def shapes(series: Series) -> dict[str, set[frozenset[tuple[str, str]]]]:
    """For each name the label sets it comes in, without what differs from server to server."""
    found: dict[str, set[frozenset[tuple[str, str]]]] = {}
    for name, labels in series:
        kept = frozenset((label, "" if label == "model_name" else text) for label, text in labels)
        found.setdefault(name, set()).add(kept)
    return found
