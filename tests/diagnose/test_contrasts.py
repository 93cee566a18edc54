"""Rules that set two numbers of one report against each other."""

from headrace.diagnose.doctor import by_rules
from headrace.diagnose.finding import Label
from headrace.diagnose.rules.contrasts import changed_nothing, contrasts
from tests.diagnose.samples import diagnose, incident


def first(**given: object) -> Label:
    return diagnose(incident(**given)).findings[0].label


def test_the_one_difference_to_a_reference_names_the_cause() -> None:
    slow = {"client:decode_tok_s": 16.0}

    assert first(metrics=slow, workload={"reference_tok_s_cpu_6": 32.0}) is Label.CPU
    assert first(metrics=slow, workload={"reference_tok_s_nvlink": 32.0}) is Label.INTERCONNECT
    assert first(metrics=slow, workload={"reference_tok_s_cpu_6": 17.0}) is not Label.CPU


def test_another_value_that_helps_is_the_setting_that_binds() -> None:
    helps = {"with max-num-batched-tokens 16384": "28-53% more throughput"}

    assert first(metrics={"client:output_tok_s": 900}, workload=helps) is Label.BAD_FLAGS


def test_a_flag_that_changes_nothing_is_not_the_cause() -> None:
    told = incident(flags={"enforce-eager": True}, workload={"without_enforce_eager": "same"})

    assert changed_nothing(told) == {"enforce-eager"}
    assert Label.BAD_FLAGS not in {finding.label for finding in diagnose(told).findings}


def test_with_and_without_alike_is_no_fault() -> None:
    runs = {
        "runs:latency_s_prefix_caching_on": [28.4, 13.5],
        "runs:latency_s_prefix_caching_off": [28.3, 13.3],
    }

    assert first(metrics=runs) is Label.EXPECTED
    runs["runs:latency_s_prefix_caching_on"] = [14.0, 6.0]
    assert first(metrics=runs) is not Label.EXPECTED


def test_prompts_that_are_read_one_after_the_other() -> None:
    prompts = {"input_tokens": 16000}

    assert first(metrics={"client:ttft_ms_c1": 3300, "client:ttft_ms_c25": 34000}, workload=prompts) is (
        Label.COMPUTE
    )
    # Far less than turn by turn: a queue behind something else, or none.
    assert first(metrics={"client:ttft_ms_c1": 3300, "client:ttft_ms_c25": 3900}, workload=prompts) is not (
        Label.COMPUTE
    )


def test_more_offered_than_served_is_a_queue_whatever_ttft_says() -> None:
    measured = {"client:request_throughput": 5.8, "client:ttft_mean_ms": 18800}

    offered = {
        rate: by_rules(incident(metrics=measured, workload={"request_rate": rate})) for rate in (6, 12)
    }

    assert Label.COMPUTE in {found.label for found in offered[12]}
    assert Label.COMPUTE not in {found.label for found in offered[6]}


def test_a_pool_whose_free_part_is_less_than_each_holds() -> None:
    line = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 44.9 tokens/s, Running: {} reqs, "
    line += "Waiting: 3 reqs, GPU KV cache usage: 82.1%"

    assert first(log=[line.format(2)]) is Label.KV_CAPACITY
    assert first(log=[line.format(12)]) is Label.QUEUEING


def test_the_context_of_llama_cpp_is_of_all_slots_together() -> None:
    asked = {"prompt_tokens": 100_000}

    assert first(engine="llama.cpp", flags={"ctx-size": 131072, "parallel": 4}, workload=asked) is (
        Label.KV_CAPACITY
    )
    assert first(engine="llama.cpp", flags={"ctx-size": 131072, "parallel": 1}, workload=asked) is not (
        Label.KV_CAPACITY
    )


def test_every_contrast_has_words_and_says_how_much() -> None:
    for contrast in contrasts():
        assert contrast.better | contrast.worse
        assert contrast.ratio > 1
        assert "{ratio" in contrast.claim
