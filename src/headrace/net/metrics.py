"""What `/metrics` says: vLLM 0.32's names, labels and bucket edges, then `headrace:*`.

    Step  --on_step-->    gauges and counters of the engine
    Output --on_output--> latencies, by the engine's own instants
    end   --on_ended-->   totals of one request

Dashboards and alerts written for vLLM work unchanged. Where vLLM's number misleads
(`iteration_tokens_total` books a whole prompt on one step, aborts are not counted) ours is
the true one and its help text says so. Counters keep growing over an engine's restart.
"""

from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from headrace.capacity.kv import max_concurrency
from headrace.core.bill import Cause
from headrace.core.output import EngineStats, FirstToken, Output
from headrace.core.request import Request
from headrace.core.settings import Settings
from headrace.net.admission import REASONS
from headrace.net.messages import Budget, Step

ENGINE = "0"
"""vLLM's label for the data-parallel rank; there is one."""

REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Record:
    """One request as the metrics follow it. Changed for every token, so plain."""

    arrived_ns: int
    max_tokens: int
    first: FirstToken | None = None
    last_token_ns: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, request: Request) -> "Record":
        return cls(request.arrived_ns, request.sampling.max_tokens)


class Metrics:
    """Counts for one served model, in a registry of its own."""

    def __init__(self, model_name: str, settings: Settings, budget: Budget) -> None:
        self.registry = CollectorRegistry()
        self._make = _Maker(self.registry, model_name)
        self._engine = _EngineMetrics(self._make)
        self._requests = _RequestMetrics(self._make, settings.max_model_len)
        self._ours = _HeadraceMetrics(self._make, settings)
        self._total_blocks = settings.usable_blocks
        self._seen: EngineStats | None = None
        _cache_config_info(self.registry, settings, budget)
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def on_step(self, step: Step) -> None:
        """A step has ended, or the engine has come to rest."""
        self._engine.on_stats(step.stats, self._seen)
        self._seen = step.stats
        self._ours.free_blocks.set(step.stats.free_blocks)
        if step.tokens:
            self._engine.iteration_tokens.observe(step.tokens)
            self._ours.on_step(step)

    def on_output(self, record: Record, output: Output, at_ns: int) -> None:
        """`output` came out of the engine at `at_ns`."""
        record.tokens += len(output.token_ids)
        self._requests.generation_tokens.inc(len(output.token_ids))
        if output.first is not None:
            record.first = output.first
            self._requests.on_first_token(output.first)
            for cause, seconds in output.first.bill.seconds().items():
                self._ours.ttft_seconds[cause].inc(seconds)
        elif record.last_token_ns:
            self._requests.inter_token.observe((at_ns - record.last_token_ns) / 1e9)
        record.last_token_ns = at_ns

    def on_refused(self, limit: str) -> None:
        """Admission said no, because of `limit`."""
        self._requests.refused[limit].inc()

    def on_timeout(self, phase: str) -> None:
        """A request ran into one of its bounds: `queue` or `request`."""
        self._ours.timeouts[phase].inc()

    def on_lost(self) -> None:
        """There is no engine, so nobody runs or waits and no block is held."""
        self._engine.on_lost()
        self._ours.free_blocks.set(self._total_blocks)
        self._ours.engine_up.set(0)

    def on_restarted(self) -> None:
        """A new engine counts from 0; what is counted here goes on."""
        self._seen = None
        self._ours.engine_up.set(1)
        self._ours.restarts.inc()

    def on_ended(self, record: Record, reason: str) -> None:
        """The request is over: `stop`, `length`, `abort` (the client left) or `error`."""
        self._requests.finished[reason].inc()
        if reason in {"stop", "length"} and record.first is not None:
            self._requests.on_finished(record, record.first)


class _Maker:
    """Makes metrics with vLLM's labels already filled in."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model_name, "engine": ENGINE}

    def gauge(self, name: str, text: str, **labels: str) -> Gauge:
        made = Gauge(name, text, (*self._labels, *labels), registry=self._registry)
        return made.labels(**self._labels, **labels)

    def counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._labels), registry=self._registry).labels(**self._labels)

    def counters(self, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        made = Counter(name, text, (*self._labels, label), registry=self._registry)
        return {value: made.labels(**self._labels, **{label: value}) for value in values}

    def by_reason(self, name: str, text: str, reasons: tuple[str, ...]) -> dict[str, Counter]:
        """As vLLM has it: counted before an engine is chosen, so without its label."""
        made = Counter(name, text, ("model_name", "reason"), registry=self._registry)
        return {each: made.labels(self._labels["model_name"], each) for each in reasons}

    def gauges(self, name: str, text: str, label: str, values: tuple[str, ...]) -> dict[str, Gauge]:
        made = Gauge(name, text, (*self._labels, label), registry=self._registry)
        return {value: made.labels(**self._labels, **{label: value}) for value in values}

    def histogram(self, name: str, text: str, edges: tuple[float, ...]) -> Histogram:
        made = Histogram(name, text, tuple(self._labels), registry=self._registry, buckets=edges)
        return made.labels(**self._labels)


class _EngineMetrics:
    """vLLM's names for the state of the scheduler and its pool."""

    def __init__(self, make: _Maker) -> None:
        self.running = make.gauge(
            "vllm:num_requests_running", "Requests that hold KV blocks and take part in steps."
        )
        self.waiting = make.gauge(
            "vllm:num_requests_waiting", "Requests in the waiting queue, preempted ones included."
        )
        self.waiting_by_reason = make.gauges(
            "vllm:num_requests_waiting_by_reason",
            "The waiting requests by what keeps them: all of ours wait for capacity.",
            "reason",
            ("capacity", "deferred"),
        )
        self.kv_usage = make.gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1."
        )
        self.preemptions = make.counter(
            "vllm:num_preemptions", "Requests that lost their KV blocks and compute them again."
        )
        self.queries = make.counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache at first admission."
        )
        self.hits = make.counter("vllm:prefix_cache_hits", "Of the tokens looked up, those that were found.")
        self.iteration_tokens = make.histogram(
            "vllm:iteration_tokens_total",
            "Tokens computed in a step, chunk by chunk (vLLM books a whole prompt on its last step).",
            STEP_TOKENS,
        )

    def on_stats(self, now: EngineStats, before: EngineStats | None) -> None:
        self.running.set(now.running)
        self.waiting.set(now.waiting)
        self.waiting_by_reason["capacity"].set(now.waiting)
        self.kv_usage.set(now.kv_cache_usage)
        self.preemptions.inc(now.preemptions - (before.preemptions if before else 0))
        self.queries.inc(now.prefix_cache_queries - (before.prefix_cache_queries if before else 0))
        self.hits.inc(now.prefix_cache_hits - (before.prefix_cache_hits if before else 0))

    def on_lost(self) -> None:
        for gauge in (self.running, self.waiting, self.waiting_by_reason["capacity"], self.kv_usage):
            gauge.set(0)


class _RequestMetrics:
    """vLLM's names for tokens and latencies of requests."""

    def __init__(self, make: _Maker, max_model_len: int) -> None:
        self.prompt_tokens = make.counter(
            "vllm:prompt_tokens", "Prompt tokens, cached ones included, counted at the first token."
        )
        self.prompt_tokens_by_source = make.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            "source",
            ("local_compute", "local_cache_hit", "external_kv_transfer"),
        )
        self.prompt_tokens_cached = make.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens found in the prefix cache, counted at the first token.",
        )
        self.generation_tokens = make.counter("vllm:generation_tokens", "Tokens generated.")
        self.finished = make.counters(
            "vllm:request_success",
            "Requests that ended, by reason. Clients that left count as abort (in vLLM they do not).",
            "finished_reason",
            FINISHED_REASONS,
        )
        self.refused = make.by_reason(
            "vllm:admission_rejections", "Requests refused by a limit of the queue (503).", REASONS
        )
        tokens = one_two_five(max_model_len)
        self.prompt = make.histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a finished request.", tokens
        )
        self.generation = make.histogram(
            "vllm:request_generation_tokens", "Generated tokens of a finished request.", tokens
        )
        self.max_generation = make.histogram(
            "vllm:request_max_num_generation_tokens", "Longest answer of a finished request.", tokens
        )
        self.params_n = make.histogram("vllm:request_params_n", "Answers asked for.", (1, 2, 5, 10, 20))
        self.params_max_tokens = make.histogram(
            "vllm:request_params_max_tokens", "max_tokens of a finished request.", tokens
        )
        self.prefill_computed = make.histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed, without cached ones.", tokens
        )
        self._make_latencies(make)

    def _make_latencies(self, make: _Maker) -> None:
        self.ttft = make.histogram(
            "vllm:time_to_first_token_seconds", "Arrival, before tokenizing, to first token.", FIRST_TOKEN_S
        )
        self.inter_token = make.histogram(
            "vllm:inter_token_latency_seconds", "Between neighbouring tokens of a request.", BETWEEN_TOKENS_S
        )
        self.tpot = make.histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of one finished request.",
            BETWEEN_TOKENS_S,
        )
        self.e2e = make.histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token of a finished request.", REQUEST_S
        )
        self.queue = make.histogram(
            "vllm:request_queue_time_seconds", "Queued to first scheduled, of a finished request.", REQUEST_S
        )
        self.inference = make.histogram(
            "vllm:request_inference_time_seconds",
            "First scheduled to last token, of a finished request.",
            REQUEST_S,
        )
        self.prefill = make.histogram(
            "vllm:request_prefill_time_seconds",
            "First scheduled to first token, of a finished request.",
            REQUEST_S,
        )
        self.decode = make.histogram(
            "vllm:request_decode_time_seconds", "First token to last, of a finished request.", REQUEST_S
        )

    def on_first_token(self, first: FirstToken) -> None:
        computed = first.num_prompt_tokens - first.num_cached_tokens
        self.prompt_tokens.inc(first.num_prompt_tokens)
        self.prompt_tokens_cached.inc(first.num_cached_tokens)
        self.prompt_tokens_by_source["local_compute"].inc(computed)
        self.prompt_tokens_by_source["local_cache_hit"].inc(first.num_cached_tokens)
        self.ttft.observe(first.bill.ttft_ns / 1e9)

    def on_finished(self, record: Record, first: FirstToken) -> None:
        self.prompt.observe(first.num_prompt_tokens)
        self.prefill_computed.observe(first.num_prompt_tokens - first.num_cached_tokens)
        self.generation.observe(record.tokens)
        self.max_generation.observe(record.tokens)
        self.params_n.observe(1)
        self.params_max_tokens.observe(record.max_tokens)
        decode_s = (record.last_token_ns - first.first_token_ns) / 1e9
        self.e2e.observe((record.last_token_ns - record.arrived_ns) / 1e9)
        self.queue.observe((first.scheduled_ns - first.queued_ns) / 1e9)
        self.prefill.observe((first.first_token_ns - first.scheduled_ns) / 1e9)
        self.decode.observe(decode_s)
        self.inference.observe((record.last_token_ns - first.scheduled_ns) / 1e9)
        if record.tokens > 1:
            self.tpot.observe(decode_s / (record.tokens - 1))


class _HeadraceMetrics:
    """What vLLM cannot say: who waited for which budget, and how much of each budget a step used."""

    def __init__(self, make: _Maker, settings: Settings) -> None:
        self.ttft_seconds = make.counters(
            "headrace:ttft_seconds",
            "Seconds of time to first token by cause; over all causes they add up to the sum of "
            "vllm:time_to_first_token_seconds.",
            "cause",
            tuple(Cause),
        )
        self.step_tokens = make.histogram(
            "headrace:step_tokens",
            "Tokens a step computed, of headrace:max_num_batched_tokens it may.",
            STEP_TOKENS,
        )
        self.step_sequences = make.histogram(
            "headrace:step_sequences",
            "Requests that took part in a step, of headrace:max_num_seqs that may.",
            STEP_SEQUENCES,
        )
        make.gauge("headrace:max_num_batched_tokens", "The budget of tokens per step.").set(
            settings.max_num_batched_tokens
        )
        make.gauge("headrace:max_num_seqs", "The budget of requests per step.").set(settings.max_num_seqs)
        self.free_blocks = make.gauge(
            "headrace:free_blocks", "KV blocks that no request holds; cached ones count as free."
        )
        self.free_blocks.set(settings.usable_blocks)
        make.gauge("headrace:total_blocks", "KV blocks that requests can hold.").set(settings.usable_blocks)
        self.step_seconds = make.counters(
            "headrace:step_seconds",
            "Seconds spent in steps, by part: deciding, computing, drawing tokens.",
            "part",
            ("plan", "forward", "sample"),
        )

        self.timeouts = make.counters(
            "headrace:request_timeouts",
            "Requests that ran into --queue-timeout or --request-timeout.",
            "phase",
            ("queue", "request"),
        )
        self.engine_up = make.gauge("headrace:engine_up", "1 while there is an engine that takes requests.")
        self.engine_up.set(1)
        self.restarts = make.counter(
            "headrace:engine_restarts", "Times the engine's process died and was started again."
        )

    def on_step(self, step: Step) -> None:
        self.step_tokens.observe(step.tokens)
        self.step_sequences.observe(step.sequences)
        self.step_seconds["plan"].inc(step.plan_ns / 1e9)
        self.step_seconds["forward"].inc(step.forward_ns / 1e9)
        self.step_seconds["sample"].inc(step.sample_ns / 1e9)


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `largest`: vLLM's edges for token counts."""
    edges: list[float] = []
    decade = 1
    while decade <= largest:
        edges += [edge for edge in (decade, 2 * decade, 5 * decade) if edge <= largest]
        decade *= 10
    return tuple(edges)


def _cache_config_info(registry: CollectorRegistry, settings: Settings, budget: Budget) -> None:
    concurrency = max_concurrency(settings.num_gpu_blocks, settings.block_size, settings.max_model_len)
    labels = {
        "engine": ENGINE,
        "block_size": settings.block_size,
        "num_gpu_blocks": settings.num_gpu_blocks,
        "cache_dtype": budget.kv_cache_dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "kv_cache_memory_bytes": budget.kv_cache_bytes,
        "kv_cache_size_tokens": int(concurrency * settings.max_model_len),
        "kv_cache_max_concurrency": concurrency,
    }
    info = Gauge("vllm:cache_config_info", "How the KV cache is laid out.", tuple(labels), registry=registry)
    info.labels(**{name: str(value) for name, value in labels.items()}).set(1)
