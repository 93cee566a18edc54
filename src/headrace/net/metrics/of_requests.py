"""vLLM's names for tokens and latencies of requests.

What is known at the first token is counted there, not at the end: under overload, when most
requests do not get that far, vLLM's queue and prefill times show next to nothing.
"""

from dataclasses import dataclass

from headrace.core.output import FirstToken
from headrace.core.request import Request
from headrace.net.admission import REASONS
from headrace.net.metrics.series import Sheet, one_two_five

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
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
ANSWERS = (1, 2, 5, 10, 20)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
WHOLE = frozenset({"stop", "length"})


@dataclass(slots=True)
class Siblings:
    """The answers to one prompt: `n` of them, which vLLM counts as one request where it counts `n`."""

    n: int = 1
    ended: int = 0
    most_tokens: int = 0


@dataclass(slots=True)
class Record:
    """One answer as the metrics follow it. Changed for every token, so plain."""

    arrived_ns: int
    max_tokens: int
    siblings: Siblings
    first: FirstToken | None = None
    last_token_ns: int = 0
    tokens: int = 0
    preemptions: int = 0

    @classmethod
    def of(cls, request: Request, siblings: Siblings | None = None) -> "Record":
        return cls(request.arrived_ns, request.sampling.max_tokens, siblings or Siblings())


class RequestSeries:
    """Changed at the first token of a request and at its end; two of them at every token."""

    def __init__(self, sheet: Sheet, max_model_len: int) -> None:
        self._count_tokens(sheet)
        self.finished = sheet.counters(
            "vllm:request_success",
            "Requests that ended, by reason. Clients that left count as abort (in vLLM they do not).",
            "finished_reason",
            FINISHED_REASONS,
        )
        self.refused = sheet.before_engines(
            "vllm:admission_rejections", "Requests refused by a limit of the queue (503).", "reason", REASONS
        )
        self._describe(sheet, one_two_five(max_model_len))
        self._time_to_first_token(sheet)
        self._time_to_the_end(sheet)

    def on_first_token(self, first: FirstToken) -> None:
        computed = first.num_prompt_tokens - first.num_cached_tokens
        self._prompt_tokens.value += first.num_prompt_tokens
        self._cached_tokens.value += first.num_cached_tokens
        self._by_source["local_compute"].value += computed
        self._by_source["local_cache_hit"].value += first.num_cached_tokens
        self._prompt.observe(first.num_prompt_tokens)
        self._computed.observe(computed)
        self._ttft.observe(first.bill.ttft_ns / 1e9)
        self._queue.observe((first.scheduled_ns - first.queued_ns) / 1e9)
        self._prefill.observe((first.first_token_ns - first.scheduled_ns) / 1e9)

    def on_ended(self, record: Record, reason: str) -> None:
        self.finished[reason].value += 1
        siblings = record.siblings
        siblings.ended += 1
        if record.first is not None and reason in WHOLE:
            siblings.most_tokens = max(siblings.most_tokens, record.tokens)
            self._on_whole(record, record.first)
        if siblings.ended == siblings.n and siblings.most_tokens:
            self._answers.observe(siblings.n)
            self._longest.observe(siblings.most_tokens)

    def _on_whole(self, record: Record, first: FirstToken) -> None:
        decode_s = (record.last_token_ns - first.first_token_ns) / 1e9
        self._generation.observe(record.tokens)
        self._max_tokens.observe(record.max_tokens)
        self._preemptions.observe(record.preemptions)
        self._e2e.observe((record.last_token_ns - record.arrived_ns) / 1e9)
        self._inference.observe((record.last_token_ns - first.scheduled_ns) / 1e9)
        self._decode.observe(decode_s)
        if record.tokens > 1:
            self._tpot.observe(decode_s / (record.tokens - 1))

    def _count_tokens(self, sheet: Sheet) -> None:
        self._prompt_tokens = sheet.counter(
            "vllm:prompt_tokens", "Prompt tokens, cached ones included, counted at the first token."
        )
        self._by_source = sheet.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            "source",
            ("local_compute", "local_cache_hit", "external_kv_transfer"),
        )
        self._cached_tokens = sheet.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens found in the prefix cache, counted at the first token.",
        )
        self.generation_tokens = sheet.counter("vllm:generation_tokens", "Tokens generated.")

    def _describe(self, sheet: Sheet, tokens: tuple[float, ...]) -> None:
        self._prompt = sheet.distribution(
            "vllm:request_prompt_tokens", "Prompt tokens of a request that has its first token.", tokens
        )
        self._computed = sheet.distribution(
            "vllm:request_prefill_kv_computed_tokens", "Of them, those that were not cached.", tokens
        )
        self._generation = sheet.distribution(
            "vllm:request_generation_tokens", "Generated tokens of a finished answer.", tokens
        )
        self._longest = sheet.distribution(
            "vllm:request_max_num_generation_tokens", "The longest of the answers to a prompt.", tokens
        )
        self._answers = sheet.distribution(
            "vllm:request_params_n", "Answers asked for to one prompt.", ANSWERS
        )
        self._max_tokens = sheet.distribution(
            "vllm:request_params_max_tokens", "max_tokens of a finished answer.", tokens
        )
        self._preemptions = sheet.distribution(
            "vllm:request_num_preemptions", "How often a finished answer was preempted.", PREEMPTIONS
        )

    def _time_to_first_token(self, sheet: Sheet) -> None:
        self._ttft = sheet.distribution(
            "vllm:time_to_first_token_seconds", "Arrival, before tokenizing, to first token.", FIRST_TOKEN_S
        )
        self._queue = sheet.distribution(
            "vllm:request_queue_time_seconds",
            "Handed to the engine to first scheduled, counted at the first token (in vLLM at the end).",
            REQUEST_S,
        )
        self._prefill = sheet.distribution(
            "vllm:request_prefill_time_seconds",
            "First scheduled to first token, counted there (in vLLM at the end).",
            REQUEST_S,
        )

    def _time_to_the_end(self, sheet: Sheet) -> None:
        self.inter_token = sheet.distribution(
            "vllm:inter_token_latency_seconds", "Between neighbouring tokens of a request.", BETWEEN_TOKENS_S
        )
        self._tpot = sheet.distribution(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of a finished answer; none for a single token (vLLM adds a 0).",
            BETWEEN_TOKENS_S,
        )
        self._decode = sheet.distribution(
            "vllm:request_decode_time_seconds", "First token to last, of a finished answer.", REQUEST_S
        )
        self._inference = sheet.distribution(
            "vllm:request_inference_time_seconds",
            "First scheduled to last token, of a finished answer.",
            REQUEST_S,
        )
        self._e2e = sheet.distribution(
            "vllm:e2e_request_latency_seconds", "Arrival to last token of a finished answer.", REQUEST_S
        )
