import pytest

from headrace.core.bill import Cause
from headrace.core.errors import BadInput
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.readers.flags import read_commands
from headrace.diagnose.remarks import remarks
from headrace.diagnose.terms import explained, myths, terms


@pytest.mark.parametrize(
    "spelt",
    [
        "max_num_seqs",
        "--max-num-seqs",
        "MAX NUM SEQS",
        "vllm:kv_cache_usage_perc",
        "what is watermark?",
        "continuous batching",
    ],
)
def test_any_spelling_finds_a_term(spelt: str) -> None:
    assert explained(spelt).term is not None


@pytest.mark.parametrize("cause", list(Cause))
def test_every_part_of_a_bill_is_explained(cause: Cause) -> None:
    assert explained(cause.value).term is not None


@pytest.mark.parametrize(
    "word", ["headrace_bill", "shortest", "slo", "overdue", "headrace:ttft_seconds_total"]
)
def test_our_own_words_are_explained(word: str) -> None:
    assert explained(word).term is not None


def test_a_flag_of_old_articles_is_named_with_what_takes_its_place() -> None:
    gone = explained("--max-num-partial-prefills").gone

    assert gone is not None
    assert gone.instead == "--long-prefill-token-threshold"


@pytest.mark.parametrize(
    "claim",
    [
        "does the KV cache fragment",
        "more tensor parallel is faster",
        "swap space for preemption",
        "restart every few hours",
        "average the p99 of replicas",
        "oom because the kv cache is full",
        "rerun the benchmark",
        "the dashboard shows 0",
        "more threads",
    ],
)
def test_a_wrong_claim_is_answered(claim: str) -> None:
    assert explained(claim).myths


def test_what_nobody_knows_is_bad_input_with_what_is_near() -> None:
    with pytest.raises(BadInput) as refused:
        explained("max_num_sqs")

    assert "max num seqs" in refused.value.hint


def test_every_term_and_myth_is_whole() -> None:
    names = [name for term in terms() for name in term.names]

    assert len(names) == len(set(names))
    for term in terms():
        assert term.what
        assert term.budget
        assert set(term.see) <= set(names), term.names
    assert all(myth.claim and myth.truth and myth.evidence for myth in myths())


def test_flags_that_went_are_not_among_those_there_are() -> None:
    facts = flag_facts()

    assert not set(facts.gone) & (facts.switches | facts.options)
    assert facts.full_name("--tensor-parallel-s") == "tensor-parallel-size"
    assert facts.full_name("-tp") == "tensor-parallel-size"
    assert facts.full_name("--max-num") == "max-num", "could be several"


def test_flags_of_a_server_that_runs_are_remarked_on_where_new_ones_lack_them() -> None:
    line = "root 7 vllm serve m/x --num-scheduler-steps 8 --max-num-seq 4 --max-num-sqs 4 --port 1"
    said = remarks(read_commands(line, "ps"))

    assert len(said) == 2
    assert "--num-scheduler-steps is not in vLLM from 0.10.1 on" in said[0]
    assert "--max-num-sqs is no flag of vLLM 0.32: did you mean --max-num-seqs?" in said[1]
    assert not remarks(read_commands(line.removeprefix("root 7 "), "script")), "there it is a finding"


@pytest.mark.parametrize(
    ("word", "heading"),
    [
        ("roofline", "roofline"),
        ("arithmetic intensity", "roofline"),
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("disaggregated prefill", "disaggregated prefill"),
        ("chunked prefill", "chunked prefill"),
        ("expert parallel", "enable_expert_parallel"),
        ("paged attention", "block_size"),
        ("p99", "percentile"),
        ("what is p99?", "percentile"),
        ("tail latency", "percentile"),
        ("goodput", "goodput"),
        ("knee", "knee"),
        ("capacity", "knee"),
        ("throughput", "throughput"),
        ("tokens per second", "throughput"),
        ("latency", "latency"),
        ("concurrency", "concurrency"),
        ("batch size", "concurrency"),
        ("queue", "num_requests_waiting"),
        ("cold start", "cold start"),
        ("504", "timeout"),
        ("exit code 137", "exit code 137"),
        ("coordinated omission", "open loop"),
        ("moe", "moe"),
        ("histogram_quantile", "histogram_quantile"),
    ],
)
def test_words_of_the_field_are_found_under_what_they_are(word: str, heading: str) -> None:
    term = explained(word).term
    assert term is not None
    assert term.names[0] == heading
