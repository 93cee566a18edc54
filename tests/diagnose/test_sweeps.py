"""One thing varied: what the columns together say, whatever their order and spelling."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.diagnose.finding import Label
from headrace.diagnose.sweep import sweep_of
from tests.diagnose.samples import first, incident, labels


def test_rows_come_in_order_of_what_was_varied() -> None:
    sweep = sweep_of(incident(metrics={"sweep:concurrency": [8, 1, 4], "sweep:ttft_ms": [80, 10, 40]}))

    assert sweep is not None
    assert sweep.varied.values == (1, 4, 8)
    assert [c.values for c in sweep.columns("ttft")] == [(10, 40, 80)]


def test_names_that_end_in_a_concurrency_make_a_sweep() -> None:
    sweep = sweep_of(incident(metrics={"client:tpot_ms_c1": 10, "client:tpot_ms_c64": 30, "client:e2e_s": 2}))

    assert sweep is not None
    assert sweep.varied.values == (1, 64)
    assert [c.kind for c in sweep.measured] == ["gaps"]


def test_where_ttft_soars_and_tokens_take_as_long_as_before_somebody_waits_for_a_slot() -> None:
    capped = {
        "sweep:concurrency": [1, 8, 64],
        "sweep:ttft_ms": [30, 400, 9000],
        "sweep:tpot_ms": [18, 18, 18],
    }
    loaded = capped | {"sweep:tpot_ms": [18, 30, 95]}

    assert first(incident(metrics=capped)) is Label.QUEUEING
    assert Label.QUEUEING not in labels(incident(metrics=loaded))


def test_a_sweep_that_ended_before_the_knee_is_healthy_and_one_beyond_it_is_saturated() -> None:
    growing = {
        "sweep:concurrency": [1, 8, 16, 32],
        "sweep:output_tok_s": [170, 1300, 2270, 3770],
        "sweep:ttft_p50_ms": [27, 60, 100, 135],
        "sweep:itl_p50_ms": [5.1, 5.5, 6.0, 7.1],
    }
    bent = growing | {"sweep:output_tok_s": [170, 600, 610, 605], "sweep:itl_p50_ms": [5, 12, 25, 50]}

    assert first(incident(metrics=growing)) is Label.EXPECTED
    assert first(incident(metrics=bent)) is Label.COMPUTE


def test_what_was_varied_on_purpose_is_no_change_of_traffic() -> None:
    sweep = {"sweep:input_tokens": [128, 2048, 32000], "sweep:ttft_ms": [300, 1200, 19000]}

    assert first(incident(metrics=sweep)) is Label.COMPUTE


@given(
    st.dictionaries(
        st.sampled_from(
            ["sweep:concurrency", "sweep:ttft_ms", "sweep:tok_s", "sweep:kv_usage", "sweep:tpot_ms"]
        ),
        st.lists(st.floats(0, 1e6), max_size=5),
    )
)
def test_any_table_is_judged(columns: dict[str, list[float]]) -> None:
    labels(incident(metrics=columns))
