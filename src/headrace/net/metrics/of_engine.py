"""vLLM's names for the state of the scheduler and its KV blocks.

The engine counts for itself and tells its totals after each step. They are carried over here when
somebody asks, so that a step costs one histogram.
"""

from headrace.capacity.kv import max_concurrency
from headrace.core.output import BlockNews, EngineStats
from headrace.core.settings import Settings
from headrace.net.messages import Budget
from headrace.net.metrics.series import Sheet

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BLOCK_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30),
    *(60, 120, 300, 600, 1200, 1800),
)
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")


class EngineSeries:
    """Gauges of what is, counters of what the engine has done."""

    def __init__(self, sheet: Sheet) -> None:
        self.running = sheet.gauge(
            "vllm:num_requests_running", "Requests that hold KV blocks and take part in steps."
        )
        self.waiting = sheet.gauge(
            "vllm:num_requests_waiting",
            "Requests in the waiting queue, preempted ones included, and those on their way to it while a "
            "step runs (in vLLM these are in no gauge).",
        )
        self._waiting_by_reason = sheet.gauges(
            "vllm:num_requests_waiting_by_reason",
            "The waiting requests by what keeps them: all of ours wait for capacity.",
            "reason",
            ("capacity", "deferred"),
        )
        self.kv_usage = sheet.gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1."
        )
        self.preemptions = sheet.counter(
            "vllm:num_preemptions",
            "Times that a request lost its KV blocks, to compute them again. Counted when it happens.",
        )
        self.queries = sheet.counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache at first admission."
        )
        self.hits = sheet.counter("vllm:prefix_cache_hits", "Of the tokens looked up, those that were found.")
        self._cached_by_source = sheet.counters(
            "vllm:prompt_tokens_cached_by_source",
            "Tokens found in the prefix cache by where it is: ours is on the device.",
            "source",
            CACHE_TIERS,
        )
        self.iteration_tokens = sheet.distribution(
            "vllm:iteration_tokens_total",
            "Tokens computed in a step, chunk by chunk (vLLM books a whole prompt on its last step).",
            STEP_TOKENS,
        )

    def carry_over(self, before: EngineStats, now: EngineStats, on_their_way: int) -> None:
        self.running.value = now.running
        self.waiting.value = self._waiting_by_reason["capacity"].value = now.waiting + on_their_way
        self.kv_usage.value = now.kv_cache_usage
        self.preemptions.value += now.preemptions - before.preemptions
        self.queries.value += now.prefix_cache_queries - before.prefix_cache_queries
        found = now.prefix_cache_hits - before.prefix_cache_hits
        self.hits.value += found
        self._cached_by_source["device"].value += found


class BlockSeries:
    """Lives of the KV blocks that `--kv-cache-metrics` looks at."""

    def __init__(self, sheet: Sheet) -> None:
        self._lifetime = sheet.distribution(
            "vllm:kv_block_lifetime_seconds",
            "From handing out a KV block to handing it out anew. Empty without --kv-cache-metrics.",
            BLOCK_S,
        )
        self._idle = sheet.distribution(
            "vllm:kv_block_idle_before_evict_seconds",
            "From the last request for a KV block to handing it out anew. Empty without --kv-cache-metrics.",
            BLOCK_S,
        )
        self._reuse_gap = sheet.distribution(
            "vllm:kv_block_reuse_gap_seconds",
            "Between two requests for the same KV block, told at the second (in vLLM once it is handed out "
            "anew). Empty without --kv-cache-metrics.",
            BLOCK_S,
        )

    def on_news(self, news: BlockNews) -> None:
        for series, values_ns in (
            (self._lifetime, news.lifetimes_ns),
            (self._idle, news.idle_ns),
            (self._reuse_gap, news.reuse_gaps_ns),
        ):
            for value_ns in values_ns:
                series.observe(value_ns / 1e9)


def add_cache_config(sheet: Sheet, settings: Settings, budget: Budget) -> None:
    """Those labels of vLLM's configuration that say something here."""
    concurrency = max_concurrency(settings.num_gpu_blocks, settings.block_size, settings.max_model_len)
    sheet.facts(
        "vllm:cache_config_info",
        "How the KV cache is laid out.",
        block_size=settings.block_size,
        num_gpu_blocks=settings.num_gpu_blocks,
        cache_dtype=budget.kv_cache_dtype,
        enable_prefix_caching=settings.enable_prefix_caching,
        kv_cache_memory_bytes=budget.kv_cache_bytes,
        kv_cache_size_tokens=int(concurrency * settings.max_model_len),
        kv_cache_max_concurrency=concurrency,
    )
