"""Candidates follow from where the time went, and none is one that a server would refuse."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bill import Cause
from headrace.core.settings import Settings
from headrace.tune.candidates import Start, propose

VLLM = Start(2048, 128, 0, 8192)


@st.composite
def starts(draw: st.DrawFn) -> Start:
    seqs = draw(st.integers(1, 512))
    max_model_len = draw(st.integers(64, 32_768))
    return Start(
        max_num_batched_tokens=draw(st.integers(seqs, 16_384)),
        max_num_seqs=seqs,
        long_prefill_token_threshold=draw(st.integers(0, max_model_len)),
        max_model_len=max_model_len,
    )


BILLS = st.none() | st.dictionaries(st.sampled_from(Cause), st.floats(0, 100))


@given(starts(), BILLS)
def test_every_candidate_is_accepted_by_a_server_and_differs_from_the_start(
    start: Start, bill: dict[Cause, float] | None
) -> None:
    choices = propose(start, bill).choices
    for choice in choices:
        full = start.levers() | choice
        assert start.max_model_len is not None
        Settings(
            max_model_len=start.max_model_len,
            num_gpu_blocks=1000,
            max_num_batched_tokens=int(full["max_num_batched_tokens"]),
            max_num_seqs=int(full["max_num_seqs"]),
            long_prefill_token_threshold=int(full["long_prefill_token_threshold"]),
        )
        assert full != start.levers()
    assert len({str(start.levers() | choice) for choice in choices}) == len(choices)


def test_waits_for_steps_are_met_with_a_cap_on_long_prompts_first() -> None:
    choices = propose(VLLM, {Cause.SHARED_STEPS: 3.0, Cause.SLOTS: 0.5}).choices
    assert choices[0] == {"long_prefill_token_threshold": 256}
    assert {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 128} in choices[:3]


def test_the_smaller_budget_alone_comes_after_every_cap() -> None:
    choices = propose(VLLM, None).choices
    reflex = choices.index({"max_num_batched_tokens": 256})
    assert all("long_prefill_token_threshold" in choice for choice in choices[:reflex])


def test_waits_for_slots_are_met_with_more_slots_first() -> None:
    assert propose(VLLM, {Cause.SLOTS: 3.0, Cause.TOKENS: 0.5}).choices[0] == {"max_num_seqs": 256}


def test_waits_for_memory_are_met_with_fewer_slots_and_a_note() -> None:
    proposal = propose(VLLM, {Cause.KV: 2.0, Cause.RECOMPUTE: 1.0, Cause.TOKENS: 1.0})
    assert proposal.choices[0] == {"max_num_seqs": 32}
    assert proposal.notes[0].startswith("75% of the slow requests' wait was for KV memory")
    assert "kv_cache_memory_bytes" in proposal.notes[0]


def test_waits_that_no_setting_shortens_are_said_to_be_so() -> None:
    assert "no scheduler setting" in propose(VLLM, {Cause.FRONT_END: 1.0}).notes[0]
    assert "no scheduler setting" in propose(VLLM, {Cause.OWN_PREFILL: 1.0}).notes[0]
    assert "keeps no bill" in propose(VLLM, None).notes[0]
