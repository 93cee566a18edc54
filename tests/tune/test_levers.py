"""Further levers are offered only where the server has them, each with its reason."""

from headrace.tune.levers import Has, further_levers


def names(has: Has, shared: float | None = None) -> list[str]:
    return [extra.name for extra in further_levers(has, shared)]


def test_a_server_without_levers_is_offered_none() -> None:
    assert names(Has()) == []


def test_prefix_caching_is_switched_on_where_prompts_repeat_and_off_where_they_do_not() -> None:
    assert names(Has(enable_prefix_caching=False), 0.4) == ["prefix caching"]
    assert names(Has(enable_prefix_caching=False), 0.01) == []
    assert names(Has(enable_prefix_caching=True), 0.01) == ["no prefix caching"]
    assert names(Has(enable_prefix_caching=True), 0.4) == []
    assert names(Has(enable_prefix_caching=True), None) == []


def test_the_cheap_and_reversible_come_first() -> None:
    has = Has(
        enable_prefix_caching=False,
        async_scheduling=False,
        kv_cache_dtype="auto",
        kv_cache_dtypes=("auto", "fp8"),
        speculative_config='{"method": "ngram"}',
        api_server_count=1,
        spare_cpus=4,
    )
    assert names(has, 0.5) == [
        "prefix caching",
        "async scheduling",
        "KV in fp8",
        "speculative decoding",
        "another API server",
    ]
    assert all(extra.reason for extra in further_levers(has, 0.5))


def test_no_process_is_added_without_a_processor_for_it() -> None:
    assert names(Has(api_server_count=1, spare_cpus=0)) == []
