"""Metrics of servers of all ages, as they are: absent is not zero, and a page of nonsense is no page."""

import asyncio

from headrace.measure.server_metrics import Quantity, Scraper, columns, growth, thinned, told

V1 = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0"} 1.7e9
python_gc_objects_collected_total{generation="0"} 1.0
"""
V0 = b'vllm:num_requests_running{model_name="m"} 2.0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
LLAMA = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:tokens_predicted_total 9\n"


def test_the_same_quantity_is_found_under_the_names_of_all_versions() -> None:
    v1, v0, llama = (columns([(0.0, thinned(page))]) for page in (V1, V0, LLAMA))
    assert v1 is not None
    assert v0 is not None
    assert llama is not None

    assert [told(each, Quantity.RUNNING) for each in (v1, v0, llama)] == [(7.0,), (2.0,), (1.0,)]
    assert [told(each, Quantity.KV_USED) for each in (v1, v0, llama)] == [(0.75,), (0.5,), None]
    assert told(llama, Quantity.WAITING) == (2.0,)
    assert told(v0, Quantity.WAITING) is None


def test_only_plain_series_of_the_engine_are_kept() -> None:
    kept = thinned(V1).decode()

    assert "bucket" not in kept
    assert "created" not in kept
    assert "python_gc" not in kept
    assert kept.count("\n") == 4


def test_what_a_page_lacks_is_none_there_and_not_zero() -> None:
    found = columns([(0.0, b"vllm:num_requests_waiting 1\n"), (1.0, b"vllm:num_preemptions_total 0\n")])

    assert found is not None
    assert told(found, Quantity.WAITING) == (1.0, None)
    assert growth(found, Quantity.PREEMPTIONS) is None  # seen once: nobody knows what came before


def test_a_counter_that_falls_is_a_restart_and_its_growth_unknown() -> None:
    pages = [(float(n), b"vllm:generation_tokens_total %d\n" % tokens) for n, tokens in enumerate((5, 9, 2))]
    found = columns(pages)

    assert found is not None
    assert growth(found, Quantity.OUTPUT_TOKENS) is None


def test_a_page_of_nonsense_is_left_out() -> None:
    assert columns([(0.0, b"vllm:broken{ 1\n")]) is None
    assert columns([]) is None
    found = columns([(0.0, b"vllm:broken{ 1\n"), (1.0, V0)])
    assert found is not None
    assert found.at == (1.0,)


def test_a_server_without_metrics_is_soon_left_alone() -> None:
    asked = list[float]()

    async def nothing() -> None:
        asked.append(0.0)

    clock = iter(range(0, 1_000, 10))
    scraper = Scraper(nothing, lambda: float(next(clock)))
    asyncio.run(scraper.watch())

    assert len(asked) == 3
    assert scraper.read() is None
