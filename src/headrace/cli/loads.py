"""What `headrace bench` sends: from options of the command line to a load that is ready to go."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TypedDict, cast

from headrace.cli.measuring import Planned, timetable_of
from headrace.cli.wording import Wording
from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.core.measurement import Load
from headrace.core.objective import Objectives
from headrace.measure.sources import Closed, Timetable
from headrace.measure.synthetic import CLASS, Lengths, asks, due_times
from headrace.report.units import many
from headrace.workload.alone import alone_of, shared_share
from headrace.workload.arrivals import Regularity
from headrace.workload.asks import MOST_PROMPT_TOKENS
from headrace.workload.mixed import LONG, MOST_REQUESTS, SHORT, MixedWorkload
from headrace.workload.readers import read_trace
from headrace.workload.reshape import conversing, resized, scaled, spread
from headrace.workload.slices import Slice
from headrace.workload.trace import TraceRequest

WARM_UP_SHARE, LONGEST_WARM_UP_S = 0.1, 10.0
ALONE_SEED = 999_999_937
"""Added to a seed for requests that must not be known to a prefix cache when the run asks."""


SPREAD_S = 60.0
"""Where a coarse clock ticks next is read as well: up to there requests are spread."""


class LoadOptions(TypedDict):
    """What the command line says of the load."""

    rate: float | None
    arrivals: str
    burstiness: float
    concurrency: int | None
    requests: int | None
    trace: Path | None
    from_: float
    first: int | None
    scale: float
    length_scale: float
    spread: bool
    think: float | None
    longest_prompt: int | None
    longest_answer: int | None
    short_rps: float
    long_rps: float
    short_prompt: tuple[int, int]
    long_prompt: tuple[int, int]
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    duration: float
    warm_up: float | None
    alone: int
    seed: int | None
    tokenizer: str
    timeout: float
    api_key: str | None
    connections: str


def at_rate(options: LoadOptions, rate: float, number: int, longer: float) -> LoadOptions:
    """The same load at another rate, for longer, with other requests for each number."""
    times = rate / usual_rate(options)
    found = cast("LoadOptions", dict(options))
    seed = options["seed"]
    found["seed"] = None if seed is None else seed + number
    found["duration"] = options["duration"] * longer
    found["alone"] = 0
    if options["trace"] is not None:
        found["scale"] = options["scale"] * times
    elif options["rate"] is not None:
        found["rate"] = rate
    else:
        found["short_rps"], found["long_rps"] = options["short_rps"] * times, options["long_rps"] * times
    return found


def usual_rate(options: LoadOptions) -> float:
    """Requests a second, as the options say it."""
    if options["concurrency"] is not None:
        raise BadInput("a closed loop has no rate of its own", "leave --concurrency out")
    if options["trace"] is not None:
        requests = _rows(options, options["trace"])
        if len(requests) < 2 or requests[-1].due_at <= 0:
            raise BadInput(f"{options['trace']}: {many(len(requests), 'request')} alone: that is no rate")
        return options["scale"] * len(requests) / requests[-1].due_at
    return options["rate"] or options["short_rps"] + options["long_rps"]


def load_of(options: LoadOptions, wording: Wording) -> Planned:
    seed = options["seed"]
    # A seed that was used before would find its prompts in the server's prefix cache.
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    if options["trace"] is not None:
        return _of_trace(options, options["trace"], seed, wording)
    warm_up_s = _warm_up_s(options, options["duration"])
    if options["concurrency"] is not None:
        return _closed(options, options["concurrency"], seed, warm_up_s, wording)
    if options["rate"] is not None:
        return _open(options, options["rate"], seed, warm_up_s, wording)
    return _mixed(options, seed, warm_up_s, wording)


def check_load(options: LoadOptions) -> None:
    """What can be told before a server is asked. Raises `BadInput`."""
    kinds = [name for name in ("rate", "concurrency", "trace") if options[name] is not None]
    if len(kinds) > 1:
        raise BadInput(
            f"--{kinds[0]} and --{kinds[1]} are two kinds of load",
            "--rate sends on a timetable, --concurrency waits for answers, --trace replays a file",
        )
    for name in ("rate", "burstiness", "scale", "length_scale", "timeout"):
        value = options[name]
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"--{name.replace('_', '-')} is {value:g}; it must be more than 0")
    if options["trace"] is not None:
        _traced(options, options["trace"])
    elif options["concurrency"] is None and options["rate"] is None:
        _mixed_workload(options, 0)
    else:
        _check_amount(options)
    if options["warm_up"] is not None and options["warm_up"] >= options["duration"]:
        raise BadInput(
            f"--warm-up {options['warm_up']:g}s leaves nothing of a --duration of {options['duration']:g}s"
        )


def _check_amount(options: LoadOptions) -> None:
    due = (options["rate"] or 0.0) * options["duration"]
    if due > MOST_REQUESTS:
        raise BadInput(f"about {due:.3g} requests would be due; {MOST_REQUESTS:,} are the limit")
    _, longest = _lengths(options).prompt_tokens
    if longest * max(1.0, due) > MOST_PROMPT_TOKENS:
        raise BadInput(
            f"prompts of up to {longest:,} tokens, about {max(1.0, due):.0f} of them, are too much; "
            f"{MOST_PROMPT_TOKENS:,} tokens in all are the limit",
            "shorten --prompt-tokens or --duration",
        )


def refuse_strange_classes(objectives: Objectives, load: Planned) -> None:
    """Raises `BadInput` for a goal of a class that no request has: nothing would be judged by it."""
    for each in objectives:
        if each.request_class and each.request_class not in load.classes:
            have = ", ".join(sorted(name for name in load.classes if name)) or "none that has a name"
            raise BadInput(
                f"--slo {str(each)!r}: no request of this load is of that class",
                f"its classes: {have}; without a class it is meant for all",
            )


def _mixed(options: LoadOptions, seed: int, warm_up_s: float, wording: Wording) -> Planned:
    workload = _mixed_workload(options, seed)
    alone: list[Ask] = []
    if options["alone"]:
        others = replace(workload, seed=seed + ALONE_SEED).arrivals()
        for name in (SHORT, LONG):
            of_class = (arrival.ask for arrival in others if arrival.ask.request_class == name)
            alone += islice(of_class, options["alone"])
    arrivals = timetable_of(workload)
    return Planned(
        _timetable(_worded(arrivals, seed, wording)),
        f"{workload.describe()}, {wording.said}",
        seed,
        Load.POISSON,
        warm_up_s,
        tuple(wording.of_asks(alone, seed + ALONE_SEED)),
        len(arrivals),
        workload.duration_s,
        classes=frozenset({SHORT, LONG}),
    )


def _mixed_workload(options: LoadOptions, seed: int) -> MixedWorkload:
    return MixedWorkload(
        short_rps=options["short_rps"],
        long_rps=options["long_rps"],
        short_prompt_tokens=options["short_prompt"],
        short_output_tokens=options["output_tokens"],
        long_prompt_tokens=options["long_prompt"],
        long_output_tokens=options["output_tokens"],
        duration_s=options["duration"],
        seed=seed,
    )


def _open(options: LoadOptions, rate: float, seed: int, warm_up_s: float, wording: Wording) -> Planned:
    duration_s, most = options["duration"], options["requests"]
    regularity = Regularity(options["arrivals"])
    if options["burstiness"] != 1:
        regularity = Regularity.GAMMA
    due = takewhile(lambda at: at < duration_s, due_times(rate, regularity, options["burstiness"], seed))
    lengths = _lengths(options)
    arrivals = [Arrival(at, ask) for at, ask in zip(islice(due, most), asks(lengths, seed), strict=False)]
    if not arrivals:
        raise BadInput(
            f"by chance, nothing is due within {duration_s:g} s at {rate:g} a second",
            "let it run longer, or raise the rate",
        )
    shape = f"burstiness {options['burstiness']:g}, " if regularity is Regularity.GAMMA else ""
    said = f"{rate:g}/s {regularity}, {shape}{_said(lengths)}, for {duration_s:g} s, seed {seed}"
    return Planned(
        _timetable(_worded(arrivals, seed, wording)),
        f"{said}, {wording.said}",
        seed,
        Load.POISSON if regularity is Regularity.POISSON else Load.OPEN,
        warm_up_s,
        _alone(options, lengths, seed, wording),
        len(arrivals),
        duration_s,
        classes=frozenset({CLASS}),
    )


def _closed(options: LoadOptions, concurrency: int, seed: int, warm_up_s: float, wording: Wording) -> Planned:
    lengths, duration_s, most = _lengths(options), options["duration"], options["requests"]
    wording.prove(asks(lengths, seed), seed)

    def source() -> Closed:
        each = islice(wording.of_endless(asks(lengths, seed), seed), most)
        return Closed(each, concurrency, until_s=duration_s, ramp_s=warm_up_s / 2)

    return Planned(
        source,
        f"{concurrency} at once, {_said(lengths)}, for {duration_s:g} s, seed {seed}, {wording.said}",
        seed,
        Load.CLOSED,
        warm_up_s,
        _alone(options, lengths, seed, wording),
        most,
        duration_s,
        classes=frozenset({CLASS}),
    )


def _of_trace(options: LoadOptions, path: Path, seed: int, wording: Wording) -> Planned:
    requests = _traced(options, path)
    lasts_s = requests[-1].due_at
    warm_up_s = _warm_up_s(options, lasts_s)
    if warm_up_s > lasts_s:
        raise BadInput(f"--warm-up {warm_up_s:g}s leaves nothing of what is due within {lasts_s:g} s")
    sent = wording.of_trace(requests, seed)
    longest_prompt, longest_answer = options["longest_prompt"], options["longest_answer"]
    said = [
        f"{many(len(requests), 'request')} of {path.name}, due within the first {options['duration']:g} s",
        f"at {options['scale']:g} times its rate",
    ]
    if options["length_scale"] != 1:
        said.append(f"{options['length_scale']:g} times its lengths")
    said += [
        f"{name} cut at {most:,}"
        for name, most in (("prompts", longest_prompt), ("answers", longest_answer))
        if most
    ]
    share = shared_share(requests)
    if share > 0:
        said.append(f"{share:.0%} of prompt tokens shared")
    if sent.lengthened:
        said.append(f"{many(sent.lengthened, 'prompt')} lengthened to the shortest there are")
    alone = wording.of_trace(alone_of(requests, options["alone"]), seed + ALONE_SEED)
    return Planned(
        _timetable(sent.arrivals),
        ", ".join([*said, f"seed {seed}", wording.said]),
        seed,
        Load.SESSIONS if any(arrival.after for arrival in sent.arrivals) else Load.OPEN,
        warm_up_s,
        tuple(arrival.ask for arrival in alone.arrivals),
        len(sent.arrivals),
        lasts_s,
        share,
        frozenset(traced.request_class for traced in requests),
    )


def _traced(options: LoadOptions, path: Path) -> Sequence[TraceRequest]:
    """What is sent of a trace, as the options want it."""
    requests = _rows(options, path)
    requests = scaled(spread(requests) if options["spread"] else requests, options["scale"])
    requests = resized(requests, options["length_scale"])
    if options["think"] is not None:
        requests = conversing(requests, options["think"])
    longest_prompt, longest_answer = options["longest_prompt"], options["longest_answer"]
    kept = tuple(
        replace(
            traced,
            prompt_tokens=min(traced.prompt_tokens, longest_prompt or traced.prompt_tokens),
            output_tokens=min(traced.output_tokens, longest_answer or traced.output_tokens),
        )
        for traced in requests
        if traced.due_at < options["duration"]
    )
    if not kept:
        raise BadInput(f"{path}: nothing is due within {options['duration']:g} s", "raise --duration")
    return kept


def _rows(options: LoadOptions, path: Path) -> Sequence[TraceRequest]:
    """No more of a trace than can be due: it may be a day of millions."""
    from_s = options["from_"]
    until_s = from_s + options["duration"] * options["scale"] + (SPREAD_S if options["spread"] else 0.0)
    return read_trace(path, part=Slice(options["first"], from_s, until_s)).requests


def _timetable(arrivals: Sequence[Arrival]) -> Callable[[], Timetable]:
    return lambda: Timetable(arrivals)


def _worded(arrivals: Sequence[Arrival], seed: int, wording: Wording) -> list[Arrival]:
    asks = wording.of_asks([arrival.ask for arrival in arrivals], seed)
    return [replace(arrival, ask=ask) for arrival, ask in zip(arrivals, asks, strict=True)]


def _warm_up_s(options: LoadOptions, duration_s: float) -> float:
    said = options["warm_up"]
    return min(WARM_UP_SHARE * duration_s, LONGEST_WARM_UP_S) if said is None else said


def _lengths(options: LoadOptions) -> Lengths:
    return Lengths(options["prompt_tokens"], options["output_tokens"])


def _alone(options: LoadOptions, lengths: Lengths, seed: int, wording: Wording) -> tuple[Ask, ...]:
    first = list(islice(asks(lengths, seed + ALONE_SEED), options["alone"]))
    return tuple(wording.of_asks(first, seed + ALONE_SEED))


def _said(lengths: Lengths) -> str:
    (a, b), (c, d) = lengths.prompt_tokens, lengths.output_tokens
    return f"{a}-{b} prompt and {c}-{d} output tokens"
