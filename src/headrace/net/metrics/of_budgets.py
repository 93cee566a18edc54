"""What vLLM cannot say: who waits for which budget, and how much of each budget the steps use."""

from headrace.core.bill import CAUSES, Bill, Cause
from headrace.core.output import EngineStats
from headrace.core.settings import Settings
from headrace.net.messages import Step
from headrace.net.metrics.of_engine import STEP_TOKENS
from headrace.net.metrics.series import Sheet

STEP_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WAITS = (Cause.TOKENS, Cause.DECODE_PACE, Cause.SLOTS, Cause.KV, Cause.STEP_IN_FLIGHT)
"""What the whole queue can wait for."""


class BudgetSeries:
    def __init__(self, sheet: Sheet, settings: Settings) -> None:
        self.waiting_seconds = sheet.counters(
            "headrace:waiting_seconds",
            "Seconds that requests spent in the queue, or running without a token, by the budget that was "
            "short. It grows while they wait; its rate is how many wait for that budget.",
            "budget",
            WAITS,
        )
        self._ttft_seconds = sheet.counters(
            "headrace:ttft_seconds",
            "Seconds of time to first token by cause; over all causes they add up to the sum of "
            "vllm:time_to_first_token_seconds.",
            "cause",
            CAUSES,
        )
        self._step_tokens = sheet.distribution(
            "headrace:step_tokens",
            "Tokens a step computed, of headrace:max_num_batched_tokens it may.",
            STEP_TOKENS,
        )
        self._step_sequences = sheet.distribution(
            "headrace:step_sequences",
            "Requests that took part in a step, of headrace:max_num_seqs that may.",
            STEP_SEQUENCES,
        )
        self.prefill_tokens = sheet.counter(
            "headrace:prefill_tokens",
            "Prompt tokens computed, in the step that computed them; what is computed again after a "
            "preemption counts again.",
        )
        self._step_seconds = sheet.counters(
            "headrace:step_seconds",
            "Seconds spent in steps, by part: deciding, computing, drawing tokens.",
            "part",
            ("plan", "forward", "sample"),
        )
        self._blocks(sheet, settings)

    def on_step(self, step: Step) -> None:
        self._step_tokens.observe(step.tokens)
        self._step_sequences.observe(step.sequences)
        self._step_seconds["plan"].value += step.plan_ns / 1e9
        self._step_seconds["forward"].value += step.forward_ns / 1e9
        self._step_seconds["sample"].value += step.sample_ns / 1e9

    def on_first_token(self, bill: Bill) -> None:
        for cause, seconds in bill.seconds().items():
            self._ttft_seconds[cause].value += seconds

    def carry_over(self, before: EngineStats, now: EngineStats) -> None:
        self.free_blocks.value = now.free_blocks
        for cause, was_ns, is_ns in zip(CAUSES, before.waited_ns, now.waited_ns, strict=True):
            if is_ns > was_ns:
                self.waiting_seconds[cause].value += (is_ns - was_ns) / 1e9

    def _blocks(self, sheet: Sheet, settings: Settings) -> None:
        tokens = settings.max_num_batched_tokens
        sheet.gauge("headrace:max_num_batched_tokens", "The budget of tokens per step.", tokens)
        sheet.gauge("headrace:max_num_seqs", "The budget of requests per step.", settings.max_num_seqs)
        blocks = settings.usable_blocks
        self.free_blocks = sheet.gauge(
            "headrace:free_blocks", "KV blocks that no request holds; cached ones count as free.", blocks
        )
        sheet.gauge("headrace:total_blocks", "KV blocks that requests can hold.", blocks)


class ServerSeries:
    """Whether there is an engine, whether it moves, and what bounds of time cut off."""

    def __init__(self, sheet: Sheet) -> None:
        self.unfinished = sheet.gauge(
            "headrace:num_requests_unfinished",
            "Requests before the engine that have not ended. Counted outside of it, so it moves while a "
            "step runs, and while the engine hangs.",
        )
        self.timeouts = sheet.counters(
            "headrace:request_timeouts",
            "Requests that ran into --queue-timeout or --request-timeout.",
            "phase",
            ("queue", "request"),
        )
        self.engine_up = sheet.gauge(
            "headrace:engine_up", "1 while there is an engine that takes requests.", 1
        )
        self.restarts = sheet.counter(
            "headrace:engine_restarts", "Times the engine's process died and was started again."
        )
