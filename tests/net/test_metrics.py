"""`/metrics` carries vLLM's names, labels and edges; and what it says is true."""

import os
import re
import signal
from dataclasses import replace

import pytest

from headrace.core.bill import CAUSES
from headrace.net.metrics.series import one_two_five
from tests.net.http import connected, get, post, posted, read_answer
from tests.net.scripted import SETTINGS, ScriptedRecipe
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


def gauge(server: RunningServer, name: str) -> float:
    return value(scrape(server), name)


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


# --- where vLLM's number misleads -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_that_leaves_is_an_abort_and_its_waits_are_counted() -> None:
    """In vLLM neither: its counter of aborts stays 0, and queue times come only with a normal end."""
    with running(service(ScriptedRecipe(step_s=0.02))) as server:
        body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with posted(server.port, CHAT, body):
            wait_until(lambda: value(scrape(server), "vllm:generation_tokens_total") > 2, "it runs")
            assert value(scrape(server), "headrace:num_requests_unfinished") == 1
        aborted = "vllm:request_success_total"
        wait_until(lambda: value(scrape(server), aborted, finished_reason="abort") == 1, "it is an abort")
        series = scrape(server)
        assert value(series, "vllm:request_queue_time_seconds_count") == 1
        assert value(series, "vllm:request_prompt_tokens_count") == 1
        assert value(series, "vllm:e2e_request_latency_seconds_count") == 0, "its end says nothing about us"
        assert value(series, "headrace:num_requests_unfinished") == 0


def test_several_answers_to_a_prompt_are_one_request_of_n(server: RunningServer) -> None:
    """They were n requests of 1: a histogram of `n` that only ever said 1."""
    before = scrape(server)
    body = {"prompt": ["ab", "cd"], "n": 3, "temperature": 1, "max_tokens": 4}
    assert post(server.port, "/v1/completions", body).status == 200
    after = scrape(server)

    def grown(name: str) -> float:
        return value(after, name) - value(before, name)

    assert grown("vllm:request_params_n_count") == 2
    assert grown("vllm:request_params_n_sum") == 6
    assert grown("vllm:request_max_num_generation_tokens_sum") == 8
    assert grown("vllm:request_generation_tokens_count") == 6


@pytest.mark.slow
def test_a_preemption_is_counted_when_it_happens_and_with_its_victim() -> None:
    """Two answers outgrow the pool. Steps take their time, or the first is done before the second comes."""
    settings = replace(SETTINGS, num_gpu_blocks=8, max_model_len=112)
    with running(service(ScriptedRecipe(settings, step_s=0.005))) as server:
        body = {"prompt": ["0123456789", "abcdefghij"], "max_tokens": 90, "ignore_eos": True}
        assert post(server.port, "/v1/completions", body).status == 200
        series = scrape(server)
        preempted = value(series, "vllm:num_preemptions_total")
        assert preempted >= 1
        assert value(series, "vllm:request_num_preemptions_sum") == preempted
        assert value(series, "headrace:waiting_seconds_total", budget="kv") > 0
        computed = value(series, "headrace:prefill_tokens_total")
        assert computed > value(series, "vllm:prompt_tokens_total"), "what was computed again counts again"


def test_what_the_steps_computed_is_prompts_and_answers(after: Series) -> None:
    prompts = value(after, "vllm:prompt_tokens_total") - value(after, "vllm:prompt_tokens_cached_total")
    assert value(after, "headrace:prefill_tokens_total") == pytest.approx(prompts, abs=1)


# --- HTTP -----------------------------------------------------------------------------------------------


def http(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


@pytest.mark.slow
def test_http_is_counted_by_path_method_and_class_of_status() -> None:
    with running(service(api_keys=("key",))) as server:
        assert post(server.port, "/v1/completions", {"prompt": "a"}).status == 401
        assert get(server.port, "/no/such/path").status == 401
        assert get(server.port, "/health").status == 200
        series = scrape(server)
    label = {"handler": "/v1/completions", "method": "POST"}
    assert http(series, "http_requests_total", status="4xx", **label) == 1
    assert http(series, "http_requests_total", status="4xx", handler="none", method="GET") == 1
    assert http(series, "http_request_duration_seconds_count", **label) == 1
    assert http(series, "http_request_duration_highr_seconds_count") == 2, "probes are not counted"


def test_no_client_can_make_up_labels(server: RunningServer) -> None:
    """Each would be kept for ever."""
    for place in range(5):
        with connected(server.port) as connection:
            head = f"MADEUP{place} /path/{place} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert read_answer(connection).status in {404, 405}
    methods = {dict(labels)["method"] for name, labels in scrape(server) if name == "http_requests_total"}
    assert "other" in methods
    assert not any(method.startswith("MADEUP") for method in methods)


@pytest.mark.slow
def test_the_bytes_of_a_streamed_answer_are_counted() -> None:
    """vLLM looks at Content-Length, which a stream does not have: 0 bytes."""
    with running(service()) as server:
        streamed = post(server.port, CHAT, {"messages": HELLO, "stream": True, "max_tokens": 5})
        series = scrape(server)
        assert http(series, "http_response_size_bytes_sum", handler=CHAT) == len(streamed.body)


def test_memory_and_time_of_the_engines_process_are_told_apart_from_the_servers(
    server: RunningServer,
) -> None:
    series = scrape(server)
    assert series["process_resident_memory_bytes", frozenset()] > 0
    assert series["headrace:engine_process_resident_memory_bytes", frozenset()] > 0


@pytest.mark.slow
def test_an_engine_that_says_nothing_shows_and_who_is_on_the_way_to_it_waits() -> None:
    """vLLM's gauges stand still as if all were well; a request that came during a step was in none."""
    with running(service(ScriptedRecipe(step_s=0.01))) as server:
        assert server.engine_pid is not None
        os.kill(server.engine_pid, signal.SIGSTOP)
        with posted(server.port, CHAT, {"messages": HELLO}):
            wait_until(lambda: gauge(server, "vllm:num_requests_waiting") == 1, "it waits")
            wait_until(lambda: gauge(server, "headrace:seconds_since_step") > 0, "the silence shows")
        wait_until(lambda: gauge(server, "vllm:num_requests_waiting") == 0, "its client has left")
        assert gauge(server, "headrace:seconds_since_step") > 0, "it has not heard of that yet"
        os.kill(server.engine_pid, signal.SIGCONT)
        wait_until(lambda: gauge(server, "headrace:seconds_since_step") == 0, "it rests")


@pytest.mark.slow
def test_a_request_runs_from_the_beginning_of_its_first_step() -> None:
    """It was in no gauge until the step had ended."""
    with (
        running(service(ScriptedRecipe(step_s=0.5))) as server,
        posted(server.port, CHAT, {"messages": HELLO}),
    ):
        wait_until(lambda: gauge(server, "vllm:num_requests_running") == 1, "it runs")
        assert gauge(server, "vllm:generation_tokens_total") == 0
        assert gauge(server, "vllm:num_requests_waiting") == 0
