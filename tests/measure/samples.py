"""Measurements to test with: made by hand, or drawn by hypothesis."""

from hypothesis import strategies as st

from headrace.core.bill import CAUSES, Cause
from headrace.core.measurement import ClientLoad, Load, Measurement, ServerMetrics
from headrace.core.timeline import Failure, FailureKind, Timeline

instants = st.floats(-1e6, 1e9)
counts = st.integers(0, 1 << 40)
spans = st.floats(0, 1e6)
names = st.text(max_size=8)
bills = st.none() | st.fixed_dictionaries({cause: st.floats(0, 1e6) for cause in CAUSES})


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    due_at, sent_at, *token_at = sorted(draw(st.lists(instants, min_size=3, max_size=9)))
    return Timeline(
        draw(names), draw(names), draw(counts), due_at, sent_at, tuple(token_at), draw(names), draw(counts),
        draw(bills),
    )  # fmt: skip


failures = st.builds(
    Failure, names, names, counts, instants, instants, st.sampled_from(FailureKind), names, counts
)

settings = st.dictionaries(names, st.booleans() | st.integers(-(1 << 53), 1 << 53) | instants | names)

measurements = st.builds(
    Measurement,
    target=names,
    model=names,
    settings=settings,
    workload=names,
    seed=st.integers(-(1 << 62), 1 << 62),
    duration_s=st.floats(0, 1e9),
    results=st.lists(timelines() | failures, max_size=12).map(tuple),
    versions=st.dictionaries(names, names),
    load=st.sampled_from(Load),
    warm_up_s=spans,
    client=st.none() | st.builds(ClientLoad, spans, counts, spans, spans, spans),
    alone=st.lists(timelines(), max_size=2).map(tuple),
    server=st.none()
    | st.lists(instants, max_size=3).flatmap(
        lambda at: st.builds(
            ServerMetrics,
            st.just(tuple(at)),
            st.dictionaries(names, st.tuples(*(st.none() | instants for _ in at)), max_size=3),
        )
    ),
)


def timeline(
    ttft_s: float,
    request_class: str = "short",
    gaps_s: tuple[float, ...] = (),
    due_at: float = 0.0,
    bill_s: dict[Cause, float] | None = None,
) -> Timeline:
    token_at = [due_at + ttft_s]
    for gap_s in gaps_s:
        token_at.append(token_at[-1] + gap_s)
    return Timeline("r", request_class, 40, due_at, due_at, tuple(token_at), "length", 0, bill_s)


def failure(
    kind: FailureKind = FailureKind.REFUSED, request_class: str = "short", reason: str = "no"
) -> Failure:
    return Failure("r", request_class, 40, 0.0, 1.0, kind, reason)


def measurement(*results: Timeline | Failure, duration_s: float = 10.0) -> Measurement:
    return Measurement("http://server", "model", {}, "a workload", 0, duration_s, results)
