"""What `headrace bench` sends: from options of the command line to a load that is ready to go."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TypedDict, cast

from headrace.cli.measuring import Planned, planned
from headrace.core.errors import BadInput
from headrace.core.exchange import Arrival, Ask
from headrace.core.measurement import Load
from headrace.core.objective import Objectives
from headrace.measure.sources import Closed, Timetable
from headrace.measure.synthetic import Lengths, asks, due_times
from headrace.measure.trace_asks import arrivals_of
from headrace.workload.arrivals import Regularity
from headrace.workload.mixed import MOST_REQUESTS, MixedWorkload
from headrace.workload.readers import read_trace
from headrace.workload.reshape import scaled, spread

WARM_UP_SHARE, LONGEST_WARM_UP_S = 0.1, 10.0
ALONE_SEED = 999_999_937
"""Added to a seed for requests that must not be known to a prefix cache when the run asks."""


class LoadOptions(TypedDict):
    """What the command line says of the load."""

    rate: float | None
    arrivals: str
    burstiness: float
    concurrency: int | None
    requests: int | None
    trace: Path | None
    first: int | None
    scale: float
    spread: bool
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
    timeout: float
    api_key: str | None
    slo: Objectives | None


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
        requests = read_trace(options["trace"]).requests[: options["first"]]
        if len(requests) < 2 or requests[-1].due_at <= 0:
            raise BadInput(f"{options['trace']}: {len(requests)} requests have no rate")
        return options["scale"] * len(requests) / requests[-1].due_at
    return options["rate"] or options["short_rps"] + options["long_rps"]


def load_of(options: LoadOptions) -> Planned:
    _check(options)
    seed = options["seed"]
    # A seed that was used before would find its prompts in the server's prefix cache.
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    warm_up_s = options["warm_up"]
    if warm_up_s is None:
        warm_up_s = min(WARM_UP_SHARE * options["duration"], LONGEST_WARM_UP_S)
    if options["trace"] is not None:
        return _of_trace(options, options["trace"], seed, warm_up_s)
    if options["concurrency"] is not None:
        return _closed(options, options["concurrency"], seed, warm_up_s)
    if options["rate"] is not None:
        return _open(options, options["rate"], seed, warm_up_s)
    return _mixed(options, seed, warm_up_s)


def _check(options: LoadOptions) -> None:
    kinds = [name for name in ("rate", "concurrency", "trace") if options[name] is not None]
    if len(kinds) > 1:
        raise BadInput(
            f"--{kinds[0]} and --{kinds[1]} are two kinds of load",
            "--rate sends on a timetable, --concurrency waits for answers, --trace replays a file",
        )
    for name in ("rate", "burstiness", "scale"):
        value = options[name]
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"--{name} is {value:g}; it must be more than 0")
    if options["warm_up"] is not None and options["warm_up"] >= options["duration"]:
        raise BadInput(
            f"--warm-up {options['warm_up']:g}s leaves nothing of a --duration of {options['duration']:g}s"
        )


def _mixed(options: LoadOptions, seed: int, warm_up_s: float) -> Planned:
    workload = MixedWorkload(
        short_rps=options["short_rps"],
        long_rps=options["long_rps"],
        short_prompt_tokens=options["short_prompt"],
        short_output_tokens=options["output_tokens"],
        long_prompt_tokens=options["long_prompt"],
        long_output_tokens=options["output_tokens"],
        duration_s=options["duration"],
        seed=seed,
    )
    alone: list[Ask] = []
    if options["alone"]:
        others = replace(workload, seed=seed + ALONE_SEED).arrivals()
        for name in ("short", "long"):
            of_class = (arrival.ask for arrival in others if arrival.ask.request_class == name)
            alone += islice(of_class, options["alone"])
    return planned(workload, warm_up_s, tuple(alone))


def _open(options: LoadOptions, rate: float, seed: int, warm_up_s: float) -> Planned:
    duration_s, most = options["duration"], options["requests"]
    if rate * duration_s > MOST_REQUESTS:
        raise BadInput(
            f"about {rate * duration_s:.3g} requests would be due; {MOST_REQUESTS:,} are the limit"
        )
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
    return Planned(
        lambda: Timetable(arrivals),
        f"{rate:g}/s {regularity}, {shape}{_said(lengths)}, for {duration_s:g} s, seed {seed}",
        seed,
        Load.POISSON if regularity is Regularity.POISSON else Load.OPEN,
        warm_up_s,
        _alone(options, lengths, seed),
        len(arrivals),
        duration_s,
    )


def _closed(options: LoadOptions, concurrency: int, seed: int, warm_up_s: float) -> Planned:
    lengths, duration_s, most = _lengths(options), options["duration"], options["requests"]

    def source() -> Closed:
        each: Iterator[Ask] = islice(asks(lengths, seed), most)
        return Closed(each, concurrency, until_s=duration_s, ramp_s=warm_up_s / 2)

    return Planned(
        source,
        f"{concurrency} at once, {_said(lengths)}, for {duration_s:g} s, seed {seed}",
        seed,
        Load.CLOSED,
        warm_up_s,
        _alone(options, lengths, seed),
        most,
        duration_s,
    )


def _of_trace(options: LoadOptions, path: Path, seed: int, warm_up_s: float) -> Planned:
    requests = read_trace(path).requests[: options["first"]]
    requests = scaled(spread(requests) if options["spread"] else requests, options["scale"])
    longest_prompt, longest_answer = options["longest_prompt"], options["longest_answer"]
    requests = tuple(
        replace(
            traced,
            prompt_tokens=min(traced.prompt_tokens, longest_prompt or traced.prompt_tokens),
            output_tokens=min(traced.output_tokens, longest_answer or traced.output_tokens),
        )
        for traced in requests
        if traced.due_at < options["duration"]
    )
    if not requests:
        raise BadInput(f"{path}: nothing is due within {options['duration']:g} s", "raise --duration")
    arrivals = arrivals_of(requests, seed)
    cut = [
        f"{name} cut at {most:,}"
        for name, most in (("prompts", longest_prompt), ("answers", longest_answer))
        if most
    ]
    said = [f"{len(arrivals):,} requests of {path.name}", f"at {options['scale']:g} times its rate", *cut]
    return Planned(
        lambda: Timetable(arrivals),
        ", ".join([*said, f"seed {seed}"]),
        seed,
        Load.SESSIONS if any(arrival.after for arrival in arrivals) else Load.OPEN,
        min(warm_up_s, requests[-1].due_at / 2),
        (),
        len(arrivals),
        requests[-1].due_at,
    )


def _lengths(options: LoadOptions) -> Lengths:
    return Lengths(options["prompt_tokens"], options["output_tokens"])


def _alone(options: LoadOptions, lengths: Lengths, seed: int) -> tuple[Ask, ...]:
    return tuple(islice(asks(lengths, seed + ALONE_SEED), options["alone"]))


def _said(lengths: Lengths) -> str:
    (a, b), (c, d) = lengths.prompt_tokens, lengths.output_tokens
    return f"{a}-{b} prompt and {c}-{d} output tokens"
