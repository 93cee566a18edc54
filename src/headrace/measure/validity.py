"""May a run be believed? Whether what was asked for was sent, and whether our own side kept up.

    Measurement --check--> Check(asked, delivered, reasons)          valid where there are no reasons

The timetable is compared with what a Poisson process would give, where it claims to be one, and the
sends with the timetable. A request that leaves late, or a token that is read late, looks like a slow server;
latencies count from due times, so they are never flattered, but beyond a share of what is measured they
are no longer about the server.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.measurement import ClientLoad, Load, Measurement
from headrace.core.timeline import Timeline
from headrace.measure.arrivals import Arrivals, describe
from headrace.measure.summary import Percentiles, client_lag_s, percentiles

LAG_SHARE, LAG_FLOOR_S = 0.1, 0.005
"""P99 of the lag may be so much of the median TTFT; below the floor it is no matter."""
LATE_SHARE, LATE_FLOOR_S = 0.25, 0.010
"""P99 of our loop's lateness may be so much of the median gap between tokens."""
RATE_MAY_DIFFER, DISPERSION_MAY_DIFFER, LAG_1_MAY_DIFFER = 0.05, 0.2, 0.1
SIGMAS = 5.0
"""A timetable may be so far from a Poisson process by chance."""


@dataclass(frozen=True, slots=True)
class Check:
    """Why a run is invalid, if it is, and what that rests on."""

    asked: Arrivals
    delivered: Arrivals
    lag_s: Percentiles | None
    client: ClientLoad | None
    reasons: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        return not self.reasons


def check(measurement: Measurement) -> Check:
    results = measurement.measured
    sent = [(r.due_at, r.sent_at) for r in results if r.sent_at is not None]
    asked = describe([due_at for due_at, _ in sent])
    delivered = describe([sent_at for _, sent_at in sent])
    lag_s = client_lag_s(measurement)
    timelines = measurement.timelines
    reasons = [*_late_sends(lag_s, timelines), *_late_reads(measurement.client, timelines)]
    if measurement.load in (Load.OPEN, Load.POISSON):
        reasons += _not_delivered(asked, delivered)
    if measurement.load is Load.POISSON:
        reasons += _not_poisson(asked)
    return Check(asked, delivered, lag_s, measurement.client, tuple(reasons))


def _late_sends(lag_s: Percentiles | None, timelines: tuple[Timeline, ...]) -> Iterator[str]:
    ttft_s = percentiles(timeline.ttft_s for timeline in timelines)
    if lag_s is None or ttft_s is None:
        return
    if lag_s.p99 > max(LAG_FLOOR_S, LAG_SHARE * ttft_s.p50):
        yield (
            f"requests left {_ms(lag_s.p99)} late at P99, which is {lag_s.p99 / ttft_s.p50:.0%} of the "
            "median TTFT: this client is part of what was measured"
        )


def _late_reads(client: ClientLoad | None, timelines: tuple[Timeline, ...]) -> Iterator[str]:
    gaps_s = percentiles(gap_s for timeline in timelines for gap_s in timeline.itl_s)
    if client is None or gaps_s is None:
        return
    if client.late_p99_s > max(LATE_FLOOR_S, LATE_SHARE * gaps_s.p50):
        yield (
            f"this client looked at its sockets {_ms(client.late_p99_s)} late at P99, at a median gap of "
            f"{_ms(gaps_s.p50)} between tokens"
        )


def _not_delivered(asked: Arrivals, delivered: Arrivals) -> Iterator[str]:
    if asked.per_s and delivered.per_s and asked.dispersion is not None and delivered.dispersion is not None:
        if abs(delivered.per_s / asked.per_s - 1) > RATE_MAY_DIFFER:
            yield f"{asked.per_s:.3g} requests a second were due and {delivered.per_s:.3g} were sent"
        if abs(delivered.dispersion - asked.dispersion) > DISPERSION_MAY_DIFFER * max(1.0, asked.dispersion):
            yield (
                f"arrivals were due with an index of dispersion of {asked.dispersion:.2f} and sent with "
                f"{delivered.dispersion:.2f}"
            )
        if abs((delivered.lag_1 or 0.0) - (asked.lag_1 or 0.0)) > LAG_1_MAY_DIFFER:
            yield (
                f"gaps were due with an autocorrelation of {asked.lag_1 or 0:.2f} and sent with "
                f"{delivered.lag_1 or 0:.2f}"
            )


def _not_poisson(asked: Arrivals) -> Iterator[str]:
    if asked.dispersion is None or asked.lag_1 is None:
        return
    if abs(asked.dispersion - 1) > SIGMAS * (2 / (asked.windows - 1)) ** 0.5:
        yield f"the timetable is no Poisson process: its index of dispersion is {asked.dispersion:.2f}, not 1"
    if abs(asked.lag_1) > SIGMAS / asked.count**0.5:
        yield f"the timetable is no Poisson process: its gaps know of each other, by {asked.lag_1:.2f}"


def _ms(amount_s: float) -> str:
    return f"{1e3 * amount_s:.3g} ms"
