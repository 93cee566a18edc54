"""A cost model of any OpenAI-compatible server, from what its client sees: about two minutes.

    requests alone, of several lengths       TTFT by prompt length        -> the way in and back
    crowds, at short and long contexts       ITL by concurrency, context  -> steps that decode
    prompts that come beside a crowd         its gap while they compute   -> steps that do both
    one very long prompt beside a crowd      how many such gaps           -> tokens a step may have

A client sees steps wherever somebody decodes: each step sends every decoding request one token, so the
gap between two of them is a step. A prompt that is computed beside them makes the gap before its first
token longer, or several gaps where it does not fit into one step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from headrace.core.cost import FrontEnd, StepShape
from headrace.core.errors import TargetFailed
from headrace.core.exchange import Arrival
from headrace.core.timeline import Timeline
from headrace.executor.cost import FittedCost, fit, nnls
from headrace.measure.beside import Beside, chunk_tokens, records_of, seen_beside
from headrace.measure.serving import Send, crowd, step_ns_of, whole

ALONE_WORDS = (8, 60, 120, 250, 500, 1000)
ALONE_TOKENS = 2
CROWDS = ((1, 12), (4, 12), (8, 12), (16, 12), (32, 12), (1, 1000), (4, 500), (8, 250))
"""How many at once, and words of their prompts."""
CROWD_TOKENS = 24
MIXED_CROWDS = (1, 4, 16)
NEWCOMER_WORDS = (30, 120, 400, 1000)
WARM_UP = (8, 12)
FEWEST_ROUNDS, MOST_ROUNDS = 1, 4
LONG_WORDS = 2600
"""Of the prompt that shows how many tokens a step may have."""
LONG_CROWD = 2
LONGEST_PROBE_S = 30.0

Record = tuple[StepShape, int]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BlackBox:
    """What was found."""

    cost: FittedCost
    chunk_tokens: int | None
    """Tokens of prompts and decodes that a step has at most; None where every prompt fitted into one."""
    largest_step_tokens: int
    """Of those seen."""
    left_out: tuple[str, ...]
    """Loads that showed nothing, and why."""


def calibrate_server(
    send: Send,
    provenance: Mapping[str, str],
    seed: int,
    say: Say,
    *,
    budget_s: float,
    max_model_len: int | None = None,
) -> BlackBox:
    """Rounds of all loads while there is time. Raises `TargetFailed` when a request fails."""
    probe = _Probe(send, seed, say)
    send(crowd(WARM_UP[0], seed + 1, words=WARM_UP[1]))
    began = time.monotonic()
    for number in range(1, MOST_ROUNDS + 1):
        started = time.monotonic()
        probe.round(number)
        now = time.monotonic()
        say(f"round {number}: {len(probe.steps) + len(probe.alone)} loads seen in {now - began:.0f} s")
        if number >= FEWEST_ROUNDS and now - began + (now - started) > budget_s:
            break
    probe.very_long(max_model_len)
    return probe.conclude(provenance)


class _Probe:
    """Sends loads and gathers what they showed."""

    def __init__(self, send: Send, seed: int, say: Say) -> None:
        self._send = send
        self._seed = seed
        self._say = say
        self.steps: list[Record] = []
        self.alone: list[Timeline] = []
        self._beside: list[Beside] = []
        self._crowds: list[tuple[Timeline, ...]] = []
        self._left_out: list[str] = []

    def round(self, number: int) -> None:
        base = self._seed + 1_000_000 * number
        for index, words in enumerate(ALONE_WORDS):
            self.alone += whole(self._send(crowd(1, base + index, words=words, tokens=ALONE_TOKENS)))
        for index, (count, words) in enumerate(CROWDS):
            self._crowd(count, words, base + 1_000 * (index + 1))
        for index, count in enumerate(MIXED_CROWDS):
            self._mixed(count, NEWCOMER_WORDS, base + 100_000 * (index + 1))

    def very_long(self, max_model_len: int | None) -> None:
        """A prompt that may not fit into one step, once, where that does not take too long."""
        words = LONG_WORDS
        if max_model_len is not None:
            words = min(words, max_model_len - 200)
        longest = max(self.alone, key=lambda timeline: timeline.prompt_tokens)
        guess_s = longest.ttft_s * (words / longest.prompt_tokens) ** 1.5
        if guess_s > LONGEST_PROBE_S or words <= longest.prompt_tokens:
            self._left_out.append(f"a prompt of {words:,} tokens would have taken about {guess_s:.0f} s")
            return
        self._mixed(LONG_CROWD, (words,), self._seed + 500_000)

    def _crowd(self, count: int, words: int, seed: int) -> None:
        timelines = whole(self._send(crowd(count, seed, words=words, tokens=CROWD_TOKENS)))
        try:
            shape, ns = step_ns_of(timelines)
        except TargetFailed:
            self._left_out.append(f"{count} requests of {words} words never decoded together")
            return
        self.steps.append((shape, int(ns)))
        self._crowds.append(tuple(timelines))
        if count > 1:
            self._beside += seen_beside(timelines[:1], timelines[1:], together=True)

    def _mixed(self, count: int, newcomers: Sequence[int], seed: int) -> None:
        itl_s = self._gap_s(count)
        due_at = count * self._ttft_s(ALONE_WORDS[0]) + 4 * itl_s
        arrivals: list[Arrival] = []
        tokens = 16
        for index, words in enumerate(newcomers):
            (one,) = crowd(1, seed + 500 + index, words=words, tokens=ALONE_TOKENS)
            ask = replace(one.ask, request_id=f"newcomer-{index}")
            arrivals.append(replace(one, due_at=due_at, ask=ask))
            spare_s = 0.3 * self._ttft_s(words) + 6 * itl_s
            due_at += self._ttft_s(words) + spare_s
            tokens += round(spare_s / itl_s) + 2
        results = whole(self._send([*crowd(count, seed, tokens=tokens), *arrivals]))
        decoding = results[:count]
        self._beside += seen_beside(decoding, results[count:])
        # Most of its gaps are steps of all of them alone.
        context = sum(timeline.prompt_tokens + len(timeline.token_at) // 2 for timeline in decoding)
        gaps_s = [gap_s for timeline in decoding for gap_s in timeline.itl_s]
        if all(len(timeline.token_at) == tokens for timeline in decoding):
            self.steps.append((StepShape(count, context, sampled_seqs=count), int(1e9 * median(gaps_s))))

    def _ttft_s(self, words: int) -> float:
        """Of one such prompt alone, in proportion where none was sent."""
        tried = [(timeline.prompt_tokens, timeline.ttft_s) for timeline in self.alone]
        tokens, seconds = zip(*sorted(tried), strict=True)
        return float(np.interp(words, tokens, seconds)) * max(1.0, words / max(tokens)) ** 1.5

    def _gap_s(self, count: int) -> float:
        """Between tokens of about so many at once."""
        decodes = [(shape.decode_seqs, ns) for shape, ns in self.steps if not shape.prefill_seqs]
        if not decodes:
            raise TargetFailed(
                f"no crowd ever decoded together for long, though {CROWD_TOKENS} tokens were asked for",
                "the server must heed ignore_eos, or it ends its answers before anything can be seen",
            )
        return min(decodes, key=lambda each: abs(each[0] - count))[1] / 1e9

    def conclude(self, provenance: Mapping[str, str]) -> BlackBox:
        in_one = [record for beside in self._beside for record in records_of(beside, None)]
        cost = fit([*self.steps, *in_one], provenance)
        budget = chunk_tokens(self._beside, cost)
        records = [record for beside in self._beside for record in records_of(beside, budget)]
        cost = fit([*self.steps, *records], provenance)
        # Once more with prompts that were alone, less what lies outside their step.
        in_a_step = [each for each in self.alone if budget is None or each.prompt_tokens <= budget]
        front_end = front_end_seen(in_a_step, self._crowds, cost)
        alone = [(shape_alone(each), _step_alone_ns(each, front_end)) for each in in_a_step]
        cost = fit([*self.steps, *records, *(record for record in alone if record[1] > 0)], provenance)
        front_end = front_end_seen(in_a_step, self._crowds, cost)
        largest = max(shape.tokens for shape, _ in [*records, *alone])
        return BlackBox(replace(cost, front_end=front_end), budget, largest, tuple(self._left_out))


def front_end_seen(
    alone: Sequence[Timeline], crowds: Sequence[Sequence[Timeline]], cost: FittedCost
) -> FrontEnd:
    """What of lone requests' TTFT is no step, split into the way in and the way back.

    On the way in requests hold each other up, on the way back they do not; a lone one cannot tell them
    apart. A crowd can: all that got their first token in its second step had come in before its first ended.
    """
    tokens = np.array([each.prompt_tokens for each in alone], dtype=np.float64)
    beyond = np.array([each.ttft_s - cost.step_ns(shape_alone(each)) / 1e9 for each in alone])
    weights = 1.0 / np.array([each.ttft_s for each in alone])
    table = np.column_stack([np.ones_like(tokens), tokens])
    fixed_s, by_token_s = nnls(table * weights[:, None], beyond * weights)
    inward_s = min([float(fixed_s), *(_most_inward_s(each) for each in crowds if len(each) > 1)])
    return FrontEnd(int(inward_s * 1e9), float(by_token_s) * 1e9, int((fixed_s - inward_s) * 1e9))


def _most_inward_s(timelines: Sequence[Timeline]) -> float:
    """What one of a crowd can have taken on the way in at most, given how many were in when."""
    firsts = sorted(timeline.token_at[0] for timeline in timelines)
    earliest = min(timelines, key=lambda timeline: timeline.token_at[0])
    second_at = earliest.token_at[1]
    half_a_gap_s = (second_at - firsts[0]) / 2
    came = sum(first <= second_at + half_a_gap_s for first in firsts)
    return firsts[0] / came


def shape_alone(timeline: Timeline) -> StepShape:
    """What it computed: a prefix that the server knew, such as the chat template's, was not."""
    cached = timeline.cached_tokens
    tokens = timeline.prompt_tokens - cached
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    return StepShape(0, 0, 1, tokens, cached, pairs, sampled_seqs=1)


def _step_alone_ns(timeline: Timeline, front_end: FrontEnd) -> int:
    outside_ns = front_end.inward_ns(timeline.prompt_tokens) + front_end.answer_ns
    return int(1e9 * timeline.ttft_s) - outside_ns
