"""What `/metrics` says: vLLM 0.32's names, labels and bucket edges, then `headrace:*`.

    Step  --on_step-->    what the engine has counted
    Output --on_output--> latencies, by the engine's own instants
    end   --on_ended-->   totals of one request

Dashboards and alerts written for vLLM work unchanged; docs/metrics.md has every series, and where
ours is true and vLLM's is not. Counters keep growing over an engine's restart.
"""

from collections.abc import Callable
from dataclasses import replace

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from headrace.core.bill import CAUSES
from headrace.core.output import EngineStats, Output
from headrace.core.settings import Settings
from headrace.net.messages import Budget, Step, Taken
from headrace.net.metrics.log_line import Totals
from headrace.net.metrics.of_budgets import WAITS, BudgetSeries, ServerSeries
from headrace.net.metrics.of_engine import BlockSeries, EngineSeries, add_cache_config
from headrace.net.metrics.of_http import HttpSeries
from headrace.net.metrics.of_requests import Record, RequestSeries
from headrace.net.metrics.series import Sheet


class Metrics:
    """Counts for one served model, in a registry of its own."""

    def __init__(
        self,
        model_name: str,
        settings: Settings,
        budget: Budget,
        untaken: Callable[[], int],
        silent_s: Callable[[], float],
    ) -> None:
        """`untaken`: requests on their way to the engine. `silent_s`: how long it has said nothing."""
        self._registry = CollectorRegistry()
        self._untaken = untaken
        sheet = Sheet(self._registry, model_name)
        self._engine = EngineSeries(sheet)
        self._blocks = BlockSeries(sheet)
        self._requests = RequestSeries(sheet, settings.max_model_len)
        self._budgets = BudgetSeries(sheet, settings)
        self._server = ServerSeries(sheet)
        self.http = HttpSeries(self._registry)
        sheet.live(
            "headrace:seconds_since_step",
            "How long the engine has said nothing although it has something to do; 0 when it has not.",
            silent_s,
        )
        add_cache_config(sheet, settings, budget)
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self._registry)
        self._nothing = _nothing_yet(settings.usable_blocks)
        self._carried = self._said = self._nothing
        self._decoded = 0  # tokens of steps since then that were no prompt's

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        self._carry_over()
        return generate_latest(self._registry)

    def totals(self) -> Totals:
        """What the periodic line is made of."""
        self._carry_over()
        return Totals(
            prefill_tokens=self._budgets.prefill_tokens.value,
            generation_tokens=self._requests.generation_tokens.value,
            running=int(self._engine.running.value),
            waiting=int(self._engine.waiting.value),
            kv_cache_usage=self._engine.kv_usage.value,
            prefix_cache_queries=self._engine.queries.value,
            prefix_cache_hits=self._engine.hits.value,
            preemptions=int(self._engine.preemptions.value),
            waited_s={cause: self._budgets.waiting_seconds[cause].value for cause in WAITS},
        )

    def watch_process(self, pid: Callable[[], int | None]) -> None:
        """Memory and time of the engine's process, whichever it is just now."""
        ProcessCollector("headrace:engine", lambda: pid() or "none", registry=self._registry)

    def on_submitted(self) -> None:
        """A request is put before the engine."""
        self._server.unfinished.value += 1

    def on_taken(self, taken: Taken) -> None:
        """A step has begun, with requests that are new in it."""
        self._said = replace(self._said, running=taken.running, waiting=taken.waiting)

    def on_step(self, step: Step) -> None:
        """A step has ended, or the engine has come to rest."""
        self._said = step.stats
        if step.tokens:
            self._decoded += len(step.outputs)
            self._engine.iteration_tokens.observe(step.tokens)
            self._budgets.on_step(step)
        if step.blocks is not None:
            self._blocks.on_news(step.blocks)

    def on_output(self, record: Record, output: Output, at_ns: int) -> None:
        """`output` came out of the engine at `at_ns`."""
        tokens = len(output.token_ids)
        record.tokens += tokens
        self._requests.generation_tokens.value += tokens
        if output.first is not None:
            record.first = output.first
            self._decoded -= 1
            self._requests.on_first_token(output.first)
            self._budgets.on_first_token(output.first.bill)
        elif record.last_token_ns:
            self._requests.inter_token.observe((at_ns - record.last_token_ns) / 1e9)
        record.last_token_ns = at_ns
        record.preemptions = output.num_preemptions

    def on_refused(self, limit: str) -> None:
        """Admission said no, because of `limit`."""
        self._requests.refused[limit].value += 1

    def on_timeout(self, phase: str) -> None:
        """A request ran into one of its bounds: `queue` or `request`."""
        self._server.timeouts[phase].value += 1

    def on_lost(self) -> None:
        """There is no engine, so nobody runs or waits and no block is held."""
        self._carry_over()
        self._carried = self._said = self._nothing  # a new engine counts from 0; what is counted here goes on
        self._server.engine_up.value = 0

    def on_restarted(self) -> None:
        self._server.engine_up.value = 1
        self._server.restarts.value += 1

    def on_ended(self, record: Record, reason: str) -> None:
        """The request is over: `stop`, `length`, `abort` (the client left) or `error`."""
        self._server.unfinished.value -= 1
        self._requests.on_ended(record, reason)

    def _carry_over(self) -> None:
        """Bring the numbers up to what the engine said last."""
        before, now = self._carried, self._said
        self._engine.carry_over(before, now, self._untaken())
        self._budgets.carry_over(before, now)
        self._budgets.prefill_tokens.value += now.tokens_computed - before.tokens_computed - self._decoded
        self._decoded = 0
        self._carried = now


def _nothing_yet(total_blocks: int) -> EngineStats:
    return EngineStats(
        steps=0,
        running=0,
        waiting=0,
        total_blocks=total_blocks,
        free_blocks=total_blocks,
        preemptions=0,
        tokens_computed=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        waited_ns=(0,) * len(CAUSES),
    )
