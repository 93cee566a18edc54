"""Suspicions: only where no rule has spoken, never surer than even, and with what would confirm them."""

from headrace.diagnose.causes import causes
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.signs import SEEN, suspects
from headrace.diagnose.signs import _signs as signs
from tests.diagnose.samples import incident

TOLD = {"workload": {"symptom": "the tokenizer thread is at its limit, the card waits"}}


def test_a_suspicion_says_that_it_is_one_and_how_to_confirm_it() -> None:
    found = diagnose(incident(**TOLD)).findings[0]

    assert (found.label, found.severity, found.rule) == (Label.CPU, Severity.NOTE, "suspicion")
    assert found.confidence <= 0.5
    assert "confirm first" in found.advice.change


def test_where_a_rule_has_spoken_nothing_is_suspected() -> None:
    seen = {"metrics": {"vllm:num_requests_running": [0, 0], "vllm:num_requests_waiting": [9, 9]}}

    assert [f.label for f in diagnose(incident(**TOLD, **seen)).findings] == [Label.STALL]


def test_as_much_for_two_causes_is_for_none() -> None:
    assert suspects(incident(workload={"symptom": "tokenizer, nginx"})) == ()
    assert suspects(incident(workload={"symptom": "slow"})) == ()


def test_what_speaks_against_a_cause_counts() -> None:
    told = {"workload": {"symptom": "kv cache usage"}, "metrics": {"client:e2e_s": 3}}
    empty = {"metrics": {"vllm:kv_cache_usage_perc": 0.1, "client:e2e_s": 3}}

    assert Label.KV_CAPACITY not in {s.label for s in suspects(incident(**(told | empty)))}


def test_every_cause_of_a_sign_says_what_would_confirm_it() -> None:
    for sign in signs():
        assert sign.label is Label.UNDETERMINED or sign.label in causes()
        assert sign.words is not None or sign.seen in SEEN
        assert sign.beside in {"", *SEEN}


def test_names_of_what_was_measured_do_not_speak_of_a_cause() -> None:
    assert suspects(incident(metrics={"client:decode_tok_s": 9})) == ()
    assert suspects(incident(workload={"symptom": "decode speed"}))[0].label is Label.MEMORY_BANDWIDTH


def test_a_bill_is_no_word_of_anybody() -> None:
    """A record of a server that preempted nobody was suspected of it: its bills have a line of 0 s."""
    assert not suspects(incident(metrics={"client:bill_recompute_s": 0.0, "client:bill_tokens_s": 0.0}))
