"""Advice tried in a twin: what is tried, what is believed, and what is then said."""

from dataclasses import replace

import pytest

from headrace.cli.doctor_twin import seen_of
from headrace.core.bill import Cause
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.observed import Lengths, settings_of, traffic_of
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.tested import (
    NOTHING_HELPS,
    Lever,
    Run,
    Trial,
    Twin,
    levers_by_place,
    levers_of,
    with_trials,
)
from tests.diagnose.samples import incident

NOW = Run(ttft_p95_s=10.0, itl_mean_s=0.02, output_tokens_per_s=1000.0, preemptions=0, overloaded=False)
TWIN = Twin(NOW, {Cause.SLOTS: 0.8, Cause.TOKENS: 0.2}, measured_ttft_s=4.0, predicted_ttft_s=4.4)
QUEUE = incident(
    flags={"max-num-seqs": 8, "max-num-batched-tokens": 2048},
    metrics={
        "vllm:num_requests_running": [8, 8],
        "vllm:num_requests_waiting": [20, 40],
        "vllm:kv_cache_usage_perc": 0.2,
    },
)
PAGE = """\
vllm:cache_config_info{{block_size="16",num_gpu_blocks="500",enable_prefix_caching="True"}} 1
vllm:time_to_first_token_seconds_count {firsts}
vllm:time_to_first_token_seconds_sum {waited}
vllm:num_requests_running 4
vllm:num_requests_waiting {waiting}
vllm:request_prompt_tokens_bucket{{le="100"}} {short}
vllm:request_prompt_tokens_bucket{{le="1000"}} {ended}
vllm:request_prompt_tokens_bucket{{le="+Inf"}} {ended}
vllm:request_generation_tokens_bucket{{le="200"}} {ended}
vllm:request_generation_tokens_bucket{{le="+Inf"}} {ended}
"""


def page(**values: float):
    return read_page(PAGE.format(**values).splitlines(), "m")


def said_after(*runs: Run) -> str:
    trials = {0: [Trial(Lever({}, f"lever {n}"), run) for n, run in enumerate(runs)]}
    return with_trials(diagnose(QUEUE), TWIN, trials).findings[0].advice.change


def test_the_bill_says_which_setting_of_a_queue_is_tried() -> None:
    finding = diagnose(QUEUE).findings[0]
    settings = settings_of(QUEUE)

    slots = levers_of(replace(finding, rule="waits"), settings, {Cause.SLOTS: 1.0})
    tokens = levers_of(replace(finding, rule="waits"), settings, {Cause.TOKENS: 1.0})

    assert [lever.change for lever in slots] == [{"max_num_seqs": 16}, {"max_num_seqs": 32}]
    assert {name for lever in tokens for name in lever.change} == {
        "long_prefill_token_threshold",
        "max_num_batched_tokens",
    }


def test_a_request_that_computes_long_itself_still_waits_for_a_slot() -> None:
    finding = diagnose(QUEUE).findings[0]

    levers = levers_of(
        replace(finding, rule="waits"), settings_of(QUEUE), {Cause.OWN_PREFILL: 0.5, Cause.SLOTS: 0.4}
    )

    assert levers[0].change == {"max_num_seqs": 16}


def test_findings_of_one_label_are_tried_with_the_same_levers() -> None:
    finding = diagnose(QUEUE).findings[0]
    both = [replace(finding, rule="waits"), replace(finding, rule="no_slot")]

    levers = levers_by_place(both, settings_of(QUEUE), {Cause.TOKENS: 1.0})

    assert levers[0] == levers[1]
    assert {"max_num_seqs": 16} in [lever.change for lever in levers[0]]


def test_what_helps_most_is_advised_with_its_figures() -> None:
    said = said_after(replace(NOW, ttft_p95_s=8.0), replace(NOW, ttft_p95_s=2.0))

    assert said.startswith("lever 1 (in the twin: TTFT P95 10.00 -> 2.00 s")


def test_what_does_not_help_or_costs_more_than_it_brings_is_not_advised() -> None:
    assert said_after(replace(NOW, ttft_p95_s=9.8)) == NOTHING_HELPS
    assert said_after(replace(NOW, ttft_p95_s=5.0, itl_mean_s=0.2)) == NOTHING_HELPS
    assert (
        said_after(replace(NOW, ttft_p95_s=5.0, itl_mean_s=0.2, output_tokens_per_s=2000.0)) != NOTHING_HELPS
    )


@pytest.mark.parametrize(("predicted", "trusted"), [(4.4, True), (9.0, False), (1.0, False)])
def test_a_twin_that_is_far_off_changes_nothing(predicted: float, trusted: bool) -> None:
    twin = replace(TWIN, predicted_ttft_s=predicted)
    before = diagnose(QUEUE)

    after = with_trials(before, twin, {0: [Trial(Lever({}, "lever"), replace(NOW, ttft_p95_s=1.0))]})

    assert twin.is_trusted is trusted
    assert (after != before) is trusted


def test_traffic_is_what_came_between_two_looks() -> None:
    looks = [
        (0.0, page(firsts=100, waited=50, waiting=10, short=90, ended=100)),
        (20.0, page(firsts=160, waited=110, waiting=30, short=140, ended=200)),
    ]
    e = joined(looks)
    traffic = traffic_of(e)

    assert traffic is not None
    assert traffic.rate_per_s == (60 + 20) / 20
    assert traffic.waiting == 10
    assert traffic.ttft_s == 1.0
    assert traffic.prompts == Lengths((0.0, 100.0, 1000.0), (50.0, 50.0))
    assert settings_of(e) == {"block_size": 16, "enable_prefix_caching": True, "num_gpu_blocks_override": 500}
    assert traffic_of(joined(looks[:1])) is None
    # A queue that grows has another mean after a longer time: no longer is drawn than somebody looked.
    seen = seen_of(e, None)
    assert seen.until_s == 20
    assert len(seen.requests) == 10 + 20 * 4


def test_quantiles_lie_between_the_edges_of_their_bucket() -> None:
    lengths = Lengths((0.0, 100.0, 1000.0), (50.0, 50.0))

    assert lengths.quantile(0.25) == 50
    assert lengths.quantile(0.75) == 550
    assert lengths.quantile(1.0) == 1000
