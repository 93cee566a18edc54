"""The load under which a server is tuned: a workload's file, or short chats among long documents.

    FILE --traffic_of_file--> Traffic      cost model --fitted--> MixedWorkload --traffic_of_mix--> Traffic
    Traffic --at(load, seed)--> Planned    the same requests at another pace, with words never sent before

The built-in mix is fitted to the machine by the twin: documents that take seconds to read, and together
with the chats so many that the machine is near its knee, where settings matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from headrace.cli.loads import LONGEST_WARM_UP_S, WARM_UP_SHARE
from headrace.cli.measuring import Planned
from headrace.core.errors import BadInput
from headrace.core.exchange import Ask
from headrace.core.measurement import Load, Measurement
from headrace.core.timeline import Timeline
from headrace.measure.sources import Timetable
from headrace.tune.traffic import Probe, document_length, fit, plan_runs, typical
from headrace.workload.alone import shared_share
from headrace.workload.asks import arrivals_of
from headrace.workload.mixed import LONG, SHORT, MixedWorkload
from headrace.workload.readers import read_trace
from headrace.workload.reshape import scaled
from headrace.workload.trace import TraceRequest
from headrace.workload.word_texts import WordTexts

ANSWER_TOKENS = (12, 24)
"""Brief: a run shall hold enough requests for a P95 of the first token."""
NEAR_KNEE = 0.65
"""Of the rate at which the twin, given everything at once, gets done."""
SHORT_TOKENS = 60
PROBE_TOKENS = 1000
NUM_PROBE_SHORT = 8
TEMPLATE_TOKENS = 30
"""Roughly what a chat template adds to a prompt."""
WARM_UP_WORDS, WARM_UP_EACH, WARM_UP_ANSWER = 300, 2, 8
LEAST_MODEL_LEN = 2200
"""A context in which the shortest documents and their answers have room."""
WORTHWHILE_RUNS = (10, 9, 8, 7)
"""Numbers of runs that give a whole search, the more thorough first."""
MOST_FILE_S = 180.0
"""Of a file's time in one run, where nothing else is said: a search makes ten of them."""

Requests = tuple[TraceRequest, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent, without words."""

    requests: Requests
    """In order of time, the first at 0."""
    said: str
    """One line for a person."""

    @property
    def duration_s(self) -> float:
        """From the first request to the last."""
        return self.requests[-1].due_at

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({request.request_class for request in self.requests}))

    def at(self, load: float, seed: int) -> Planned:
        """At `load` times its rate; the seed draws the words."""
        requests = scaled(self.requests, load)
        arrivals = arrivals_of(requests, WordTexts(seed), exact=False).arrivals
        return Planned(
            lambda: Timetable(arrivals),
            f"{self.said}, at {load:g} times its rate, seed {seed}",
            seed,
            Load.SESSIONS if any(arrival.after for arrival in arrivals) else Load.OPEN,
            warm_up_s(requests[-1].due_at),
            (),
            len(arrivals),
            requests[-1].due_at,
            shared_share(requests),
        )

    def warm_up(self, seed: int) -> tuple[Ask, ...]:
        """One or two of each kind: a server is slow at what it does for the first time."""
        asks: list[Ask] = []
        for name in self.classes:
            of_class = islice((each for each in self.requests if each.request_class == name), WARM_UP_EACH)
            brief = tuple(
                replace(
                    each,
                    due_at=0.0,
                    prompt_tokens=min(each.prompt_tokens, WARM_UP_WORDS),
                    output_tokens=min(each.output_tokens, WARM_UP_ANSWER),
                    think_s=None,
                )
                for each in of_class
            )
            asks += [arrival.ask for arrival in arrivals_of(brief, WordTexts(seed), exact=False).arrivals]
        return tuple(asks)

    def as_counted(self, measurement: Measurement) -> Requests:
        """With the prompts' lengths as the server counts them, its template included."""
        counted = {
            result.request_id: result.prompt_tokens
            for result in measurement.results
            if isinstance(result, Timeline)
        }
        ids = [f"{each.request_class}-{number}" for number, each in enumerate(self.requests)]
        pairs = [
            (counted[name], each.prompt_tokens)
            for name, each in zip(ids, self.requests, strict=True)
            if name in counted
        ]
        more = sum(told - words for told, words in pairs) / len(pairs) if pairs else 0.0
        return tuple(
            replace(each, prompt_tokens=counted.get(name, max(1, round(each.prompt_tokens + more))))
            for name, each in zip(ids, self.requests, strict=True)
        )


def warm_up_s(duration_s: float) -> float:
    """What is due before is in no figure: the server was still filling up."""
    return min(WARM_UP_SHARE * duration_s, LONGEST_WARM_UP_S)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Which requests of a file are sent, and how they are cut."""

    first: int | None = None
    scale: float = 1.0
    duration_s: float | None = None
    longest_prompt: int | None = None
    longest_answer: int | None = None


def traffic_of_file(path: Path, part: FilePart) -> Traffic:
    """Raises `BadInput` where it cannot be read or nothing is left of it."""
    requests = scaled(read_trace(path).requests[: part.first], part.scale)
    until_s = MOST_FILE_S if part.duration_s is None else part.duration_s
    begins_at = requests[0].due_at if requests else 0.0
    kept = tuple(
        replace(
            each,
            due_at=each.due_at - begins_at,
            prompt_tokens=min(each.prompt_tokens, part.longest_prompt or each.prompt_tokens),
            output_tokens=max(1, min(each.output_tokens, part.longest_answer or each.output_tokens)),
        )
        for each in requests
        if each.due_at - begins_at < until_s
    )
    if len(kept) < 2 or kept[-1].due_at <= 0:
        raise BadInput(
            f"{path}: {len(kept)} requests are due within {until_s:g} s: too few to tune for",
            "a longer --duration, or --scale for more of them a second",
        )
    of = "" if len(kept) == len(requests) else f" of its {len(requests):,}"
    return Traffic(kept, f"{len(kept):,}{of} requests of {path.name}, {kept[-1].due_at:.0f} s")


def require_room(traffic: Traffic, max_model_len: int | None) -> None:
    """Raises `BadInput` where the server would refuse some of it: a failure of ours, in every run."""
    if max_model_len is None:
        return
    longest = max(traffic.requests, key=lambda each: each.prompt_tokens + each.output_tokens)
    needs = longest.prompt_tokens + longest.output_tokens + TEMPLATE_TOKENS
    if needs > max_model_len:
        too_long = sum(
            each.prompt_tokens + each.output_tokens + TEMPLATE_TOKENS > max_model_len
            for each in traffic.requests
        )
        raise BadInput(
            f"{too_long} of {len(traffic.requests)} requests do not fit into the server's context of "
            f"{max_model_len:,} tokens; the longest has {longest.prompt_tokens:,} and an answer of "
            f"{longest.output_tokens:,}",
            f"--longest-prompt {max(1, max_model_len - longest.output_tokens - 2 * TEMPLATE_TOKENS)}, or a "
            "larger --max-model-len where it is served",
        )


# --- the built-in mix ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person says of the mix. None: fitted."""

    short_rps: float | None = None
    long_rps: float | None = None
    seed: int = 0

    @property
    def fix_rates(self) -> bool:
        return self.short_rps is not None or self.long_rps is not None


SecondsFor = Callable[[tuple[TraceRequest, ...]], float]
"""How long the server takes for all of these at once, to its last token; and for one, to its first."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the twin is asked to fit a load."""

    first_token_s: SecondsFor
    all_at_once_s: SecondsFor


def fitted(speeds: Speeds, max_model_len: int, wishes: Wishes) -> MixedWorkload:
    """Rates and lengths that bring this server near its knee; still without a duration."""
    if max_model_len < LEAST_MODEL_LEN:
        raise BadInput(
            f"the model's context of {max_model_len} tokens has no room for documents beside chats",
            f"a model of at least {LEAST_MODEL_LEN} tokens, or your own load with --workload",
        )
    probe = _probe(speeds, max_model_len * 3 // 5)
    rates = fit(probe)
    mix = MixedWorkload(
        short_rps=rates.short_rps if wishes.short_rps is None else wishes.short_rps,
        long_rps=rates.long_rps if wishes.long_rps is None else wishes.long_rps,
        short_output_tokens=ANSWER_TOKENS,
        long_prompt_tokens=(probe.document_tokens * 3 // 4, probe.document_tokens * 5 // 4),
        long_output_tokens=ANSWER_TOKENS,
        duration_s=300.0,
        seed=wishes.seed,
    )
    if wishes.fix_rates:
        return mix
    requests = [replace(each, due_at=0.0) for each in requests_of(mix)]
    knee = len(requests) / speeds.all_at_once_s(tuple(requests))
    return _times(mix, NEAR_KNEE * knee / (mix.short_rps + mix.long_rps))


def timed(mix: MixedWorkload, left_s: float, around_s: float, max_trials: int | None) -> MixedWorkload:
    """As long as the time left allows, under a seed that makes it typical."""
    runs = [min(number, max_trials or number) for number in WORTHWHILE_RUNS]
    duration_s = plan_runs(left_s, around_s, runs, mix)
    return typical(replace(mix, duration_s=duration_s))


def traffic_of_mix(mix: MixedWorkload) -> Traffic:
    return Traffic(requests_of(mix), mix.describe())


def requests_of(mix: MixedWorkload) -> Requests:
    """Its timetable without its words."""
    arrivals = mix.arrivals()
    first_at = arrivals[0].due_at if arrivals else 0.0
    return tuple(
        TraceRequest(
            each.due_at - first_at, each.ask.num_prompt_words, each.ask.max_tokens, each.ask.request_class
        )
        for each in arrivals
    )


def _probe(speeds: Speeds, most_document_tokens: int) -> Probe:
    def document(tokens: int) -> Requests:
        return (TraceRequest(0.0, tokens, 2, LONG),)

    tokens = document_length(PROBE_TOKENS, speeds.first_token_s(document(PROBE_TOKENS)), most_document_tokens)
    short = TraceRequest(0.0, SHORT_TOKENS + TEMPLATE_TOKENS, sum(ANSWER_TOKENS) // 2, SHORT)
    together_s = speeds.all_at_once_s((short,) * NUM_PROBE_SHORT)
    return Probe(tokens, speeds.first_token_s(document(tokens)), together_s / NUM_PROBE_SHORT)


def _times(mix: MixedWorkload, factor: float) -> MixedWorkload:
    return replace(
        mix,
        short_rps=float(f"{mix.short_rps * factor:.2g}"),
        long_rps=float(f"{mix.long_rps * factor:.2g}"),
    )
