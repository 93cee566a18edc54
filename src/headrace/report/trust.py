"""Whether a run may be believed, what it was promised, and what the server said of itself, in sentences.

Measurement -> sentences of at most 80 columns each
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.core.measurement import ALL, Load, Measurement
from headrace.core.objective import Objectives
from headrace.core.timeline import Timeline
from headrace.measure.goodput import Judged, Verdict, goodput, judged
from headrace.measure.queueing import queue_shares
from headrace.measure.server_metrics import Quantity, growth, told
from headrace.measure.steady import steadiness
from headrace.measure.validity import Check, check
from headrace.report.units import many, seconds

_STYLE = {Verdict.MET: "green", Verdict.MISSED: "red", Verdict.UNDECIDED: "yellow"}
USAGE_MAY_DIFFER = 0.02


def print_validity(measurement: Measurement, console: Console) -> None:
    """First of all, where a run is worth nothing."""
    for reason in check(measurement).reasons:
        console.print(Text("INVALID: ", style="bold red").append(reason, style="default"))


def delivery_notes(measurement: Measurement) -> Iterator[str]:
    """How well our own side did its work."""
    checked = check(measurement)
    if checked.lag_s is not None:
        lag_s = checked.lag_s
        yield f"Requests left {seconds(lag_s.p50)} late at P50, {seconds(lag_s.p99)} at P99."
    if measurement.load is not Load.CLOSED and checked.delivered.dispersion is not None:
        yield _arrivals(checked)
    client = measurement.client
    if client is not None and measurement.duration_s > 1:
        share = client.cpu_s / measurement.duration_s
        yield (
            f"The client used {share:.1%} of a processor and looked {seconds(client.late_p99_s)} late at P99."
        )
    if client is not None and client.connections is not None:
        again = f" Sent again, as theirs was closed: {client.sent_again:,}." if client.sent_again else ""
        requests = many(len(measurement.results), "request")
        yield f"{many(client.connections, 'connection')} for {requests}.{again}"


def usage_notes(measurement: Measurement) -> Iterator[str]:
    """Where the server's counts and what came differ, and answers that ended early."""
    timelines = measurement.timelines
    wrong = sum(
        each.usage_tokens is not None and each.usage_tokens != len(each.token_at) for each in timelines
    )
    if wrong:
        yield f"In {many(wrong, 'answer')} the server's usage is not what was sent; what came was counted."
    joined = sum(0 < each.token_events < len(each.token_at) for each in timelines)
    if joined:
        share = sum(e.token_events for e in timelines) / sum(len(e.token_at) for e in timelines)
        yield (
            f"{many(joined, 'answer')} had events with several tokens ({1 / share:.2f} tokens an event): "
            "tokens of one event share its instant."
        )
    exact = [each for each in timelines if each.asked_prompt_tokens and each.usage_tokens is not None]
    other = [each for each in exact if each.prompt_tokens != each.asked_prompt_tokens]
    if other:
        more = sum(each.prompt_tokens - each.asked_prompt_tokens for each in other) / len(other)
        yield (
            f"In {len(other)} of {len(exact)} answers the server counted another prompt than was made for "
            f"its tokenizer, by {more:+.1f} tokens in the mean."
        )
    elif exact:
        each_has = f"all {len(exact):,} prompts have" if len(exact) > 1 else "the one prompt has"
        yield f"By the server's count {each_has} exactly the tokens asked for."
    short = sum(each.is_short for each in timelines)
    if short:
        yield (
            f"{many(short, 'answer')} ended before the length asked for (the server does not know "
            "ignore_eos): other runs may answer longer."
        )


def steady_notes(measurement: Measurement) -> Iterator[str]:
    steady = steadiness(measurement)
    if steady.is_steady is False and measurement.load is not Load.CLOSED:
        yield (
            f"IT COULD NOT KEEP UP: {steady.why}. The latencies are a matter of how long the run was: "
            "a longer one has worse. Ask less of it, or look for what it can bear: --find-capacity."
        )


def queue_notes(measurement: Measurement) -> Iterator[str]:
    for name, share in queue_shares(measurement).items():
        yield (
            f"Alone a {name} request has its first token after {seconds(share.alone_s)} (mean of "
            f"{share.alone}), here one as long after {seconds(share.loaded_s)}: {share.share:.0%} is "
            "the load's."
        )


def server_notes(measurement: Measurement) -> Iterator[str]:
    """What its metrics add."""
    server = measurement.server
    if server is None:
        return
    peaks = [
        (label, max(known))
        for label, quantity in (("running", Quantity.RUNNING), ("waiting", Quantity.WAITING))
        if (known := [value for value in told(server, quantity) or () if value is not None])
    ]
    said = [f"at most {most:.0f} {label}" for label, most in peaks]
    kv = [value for value in told(server, Quantity.KV_USED) or () if value is not None]
    if kv:
        said.append(f"KV cache {max(kv):.0%} full")
    preempted = growth(server, Quantity.PREEMPTIONS)
    if preempted:
        said.append(f"{many(round(preempted), 'preemption')} or more")
    if said:
        yield f"By its own metrics, every second: {', '.join(said)}."
    yield from _other_traffic(measurement)


def _other_traffic(measurement: Measurement) -> Iterator[str]:
    counted = growth(measurement.server, Quantity.OUTPUT_TOKENS) if measurement.server else None
    if counted is None:
        return
    ours = sum(
        len(each.token_at) if isinstance(each, Timeline) else each.tokens_received
        for each in measurement.results
    )
    if counted > ours * (1 + USAGE_MAY_DIFFER) + 16:
        yield (
            f"The server counted {counted:,.0f} output tokens, we received {ours:,}: others "
            "used it as well, or it went on for requests that had been given up."
        )


def print_objectives(measurement: Measurement, objectives: Objectives, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for column in ("class", "objective", "measured", "95 % interval", "verdict"):
        justify = "left" if column in ("class", "objective", "verdict") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for each in judged(measurement, objectives):
        table.add_row(
            Text(each.request_class),
            str(each.objective).rpartition(": ")[2],
            bounded(each.value_s),
            between(each),
            Text(each.verdict, style=_STYLE[each.verdict]),
        )
    console.print(table)
    found = goodput(measurement, objectives)
    for name, good in found.items():
        if name == ALL and len(found) == 2:
            continue  # a single class is not told twice
        label = "in all" if name == ALL else name
        console.print(
            Text(f"Goodput, {label}: {good.per_s:.2f} a second, {good.attainment:.1%} of {good.due} due.")
        )
    console.print()


def _arrivals(checked: Check) -> str:
    asked, sent = checked.asked, checked.delivered
    return (
        f"Arrivals as asked: {sent.per_s or 0:.3g} a second ({asked.per_s or 0:.3g} due), index of "
        f"dispersion {sent.dispersion or 0:.2f} ({asked.dispersion or 0:.2f}), lag-1 {sent.lag_1 or 0:.2f} "
        f"({asked.lag_1 or 0:.2f})."
    )


def between(each: Judged) -> str:
    """The interval of a percentile that was promised."""
    if each.interval_s is None:
        return "too few"
    low, high = each.interval_s
    return f"{bounded(low)} to {bounded(high)}"


def bounded(value_s: float) -> str:
    """A percentile that failures may have made infinite."""
    return "failed" if value_s == float("inf") else seconds(value_s)
