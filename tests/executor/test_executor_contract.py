"""What every executor promises. The scripted one and the real one run the same suite."""

import pytest

from headrace.core.output import TokenLogprobs
from headrace.core.plan import Chunk, Plan, Status
from headrace.core.ports import Executor
from headrace.core.request import Grammar, GrammarKind, SamplingParams
from headrace.executor.paged import PagedExecutor
from headrace.executor.scripted import ScriptedExecutor
from tests.executor.driving import answer, append, chunks_of, greedy, step, work

PROMPT = tuple(300 + (place * 37) % 900 for place in range(70))
SMALL = tuple(1 + (place * 37) % 200 for place in range(70))
"""Tokens that every model has."""
OTHER = tuple(500 + (place * 53) % 700 for place in range(45))
BLOCKS, ELSEWHERE, OTHERS = (1, 2, 3), (9, 4, 7), (11, 12, 13)

REAL = pytest.param("paged", marks=[pytest.mark.model, pytest.mark.slow])


@pytest.fixture(params=["scripted", REAL])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "scripted":
        return ScriptedExecutor(num_blocks=64)
    # Its own: works of other tests are never forgotten, and names come again.
    return PagedExecutor(request.getfixturevalue("paged").model, num_blocks=64)


def test_an_empty_plan_gives_no_tokens(executor: Executor) -> None:
    assert executor.run(Plan()).token_ids == []


def test_only_the_chunk_that_reaches_the_end_gets_a_token(executor: Executor) -> None:
    first, second = chunks_of(work("a", PROMPT, greedy(4), BLOCKS), 40, 30)
    assert step(executor, first) == [None]
    assert isinstance(step(executor, second)[0], int)


def test_tokens_stand_at_the_places_of_their_chunks(executor: Executor) -> None:
    whole = Chunk(work("a", PROMPT, greedy(4), BLOCKS), 0, 70, samples=True)
    part = Chunk(work("b", OTHER, greedy(4), OTHERS), 0, 20, samples=False)
    assert [token is None for token in step(executor, part, whole)] == [True, False]


def test_the_same_work_gets_the_same_answer_twice(executor: Executor) -> None:
    answers = {tuple(answer(executor, work(name, PROMPT, greedy(6), BLOCKS), 6)) for name in ("a", "b")}
    assert len(answers) == 1


@pytest.mark.parametrize("lengths", [(69, 1), (1, 69), (16, 16, 16, 16, 6), (33, 37), (32, 32, 6)])
def test_a_prompt_in_chunks_gets_the_answer_of_the_whole_prompt(
    executor: Executor, lengths: tuple[int, ...]
) -> None:
    expected = answer(executor, work("whole", PROMPT, greedy(1), BLOCKS), 1)
    chunked = work("chunked", PROMPT, greedy(1), ELSEWHERE)
    tokens = [step(executor, chunk)[0] for chunk in chunks_of(chunked, *lengths)]
    assert tokens[-1:] == expected


def test_neighbours_in_the_batch_change_nothing(executor: Executor) -> None:
    alone = answer(executor, work("alone", PROMPT, greedy(5), BLOCKS), 5)
    together, neighbour = work("a", PROMPT, greedy(5), ELSEWHERE), work("b", OTHER, greedy(5), OTHERS)
    answered: list[int | None] = []
    computed = 0
    for start in range(5):  # the neighbour prefills, nine tokens a step, while the other decodes
        chunk = Chunk(together, computed, together.num_tokens - computed, samples=True)
        computed = together.num_tokens
        _, token = step(executor, Chunk(neighbour, start * 9, 9, samples=start == 4), chunk)
        assert token is not None
        append(together, token)
        answered.append(token)
    assert answered == alone


def test_a_block_can_be_shared_and_even_written_in_the_same_step(executor: Executor) -> None:
    expected = answer(executor, work("alone", PROMPT, greedy(3), BLOCKS), 3)
    writer, reader = work("w", PROMPT, greedy(3), (21, 22, 23)), work("r", PROMPT, greedy(3), (21, 22, 24))
    first = step(executor, Chunk(writer, 0, 70, samples=True), Chunk(reader, 64, 6, samples=True))
    assert first == [expected[0], expected[0]]


def test_a_preempted_work_goes_on_as_if_nothing_had_happened(executor: Executor) -> None:
    expected = answer(executor, work("calm", PROMPT, greedy(6), BLOCKS), 6)
    preempted = work("moved", PROMPT, greedy(6), ELSEWHERE)
    before = answer(executor, preempted, 3)
    answer(executor, work("intruder", OTHER, greedy(1), ELSEWHERE), 1)  # overwrites its blocks
    preempted.block_ids = list(OTHERS)
    assert before + answer(executor, preempted, 3) == expected


def test_a_seeded_draw_depends_on_its_own_request_only(executor: Executor) -> None:
    sampling = SamplingParams(4, temperature=1.0, top_p=0.95, seed=11)
    alone = answer(executor, work("alone", PROMPT, sampling, BLOCKS), 4)
    crowd = [
        Chunk(
            work(f"n{place}", OTHER, SamplingParams(4, seed=place), (30 + place * 2, 31 + place * 2)),
            0,
            45,
            True,
        )
        for place in range(5)
    ]
    seeded = work("a", PROMPT, sampling, ELSEWHERE)
    first = step(executor, *crowd, Chunk(seeded, 0, 70, samples=True))[-1]
    assert first == alone[0]


def test_a_work_that_was_cancelled_after_planning_disturbs_nobody(executor: Executor) -> None:
    expected = answer(executor, work("alone", PROMPT, greedy(2), BLOCKS), 2)
    answering = work("a", PROMPT, greedy(2), ELSEWHERE)
    cancelled = work("gone", OTHER, greedy(2), ())
    cancelled.status = Status.FINISHED
    first, _ = step(executor, Chunk(answering, 0, 70, samples=True), Chunk(cancelled, 30, 15, samples=True))
    assert first == expected[0]
    append(answering, expected[0])
    assert step(executor, Chunk(answering, 70, 1, samples=True)) == expected[1:]


def test_forgetting_is_allowed_for_any_work_at_any_time(executor: Executor) -> None:
    never_run = work("never", PROMPT, greedy(2), BLOCKS)
    executor.forget(never_run)
    executor.forget(never_run)


CHOOSY = SamplingParams(
    6,
    temperature=0.8,
    seed=5,
    repetition_penalty=1.5,
    presence_penalty=1.0,
    frequency_penalty=0.5,
    logit_bias=((97, 3.0),),
    bad_words=((101,), (97, 98)),
    min_tokens=2,
    eos_token_id=32,
    num_logprobs=3,
)


def test_a_choosy_work_goes_on_after_a_preemption_as_if_nothing_had_happened(executor: Executor) -> None:
    expected = answer(executor, work("calm", PROMPT, CHOOSY, BLOCKS), 6)
    moved = work("moved", PROMPT, CHOOSY, ELSEWHERE)
    before = answer(executor, moved, 3)
    executor.forget(moved)  # whatever was kept is gone as well
    moved.block_ids = list(OTHERS)
    assert before + answer(executor, moved, 3) == expected
    assert not {101} & set(expected)


def test_penalties_and_biases_change_the_answer_of_their_own_work_only(executor: Executor) -> None:
    plain = answer(executor, work("plain", PROMPT, greedy(1), BLOCKS), 1)[0]
    banned = SamplingParams(1, temperature=0.0, logit_bias=((plain, -1000.0),))
    here, there = work("a", PROMPT, banned, ELSEWHERE), work("b", PROMPT, greedy(1), OTHERS)
    first, second = step(executor, Chunk(here, 0, 70, samples=True), Chunk(there, 0, 70, samples=True))
    assert first != plain
    assert second == plain


def test_log_probabilities_come_to_the_places_of_those_who_asked(executor: Executor) -> None:
    asks = SamplingParams(4, temperature=0.0, num_logprobs=4)
    mid = Chunk(work("mid", PROMPT, asks, BLOCKS), 0, 30, samples=False)
    plain = Chunk(work("plain", PROMPT, greedy(4), ELSEWHERE), 0, 70, samples=True)
    asking = Chunk(work("asks", OTHER, asks, OTHERS), 0, 45, samples=True)
    result = executor.run(Plan(chunks=[mid, plain, asking]))
    assert result.logprobs is not None
    assert list(result.logprobs) == [2]
    found = result.logprobs[2]
    assert (found.token_id, found.rank) == (result.token_ids[2], 1)
    assert found.top[0] == (found.token_id, found.logprob)
    assert len(found.top) == 4
    assert [logprob for _, logprob in found.top] == sorted((p for _, p in found.top), reverse=True)


def test_an_answer_keeps_to_its_grammar_also_after_a_preemption(executor: Executor) -> None:
    either = SamplingParams(20, seed=3, grammar=Grammar(GrammarKind.REGEX, "[0-9]{4}(!|\\?)"))
    calm = work("calm", PROMPT, either, BLOCKS)
    expected = answer(executor, calm, 3)
    moved = work("moved", PROMPT, either, ELSEWHERE)
    before = answer(executor, moved, 2)
    executor.forget(moved)
    moved.block_ids = list(OTHERS)
    assert before + answer(executor, moved, 1) == expected


def prompt_logprobs(
    executor: Executor, name: str, *lengths: int, blocks: tuple[int, ...] = ELSEWHERE
) -> list[TokenLogprobs]:
    """What comes beside the first token, when the prompt is cut like this; nothing comes before it."""
    asks = SamplingParams(2, temperature=0.0, num_prompt_logprobs=3)
    neighbour = work(f"beside {name}", OTHER, greedy(1), OTHERS)
    chunks = chunks_of(work(name, SMALL, asks, blocks), *lengths)
    for chunk in chunks[:-1]:
        assert executor.run(Plan(chunks=[chunk])).prompt_logprobs is None
    last = executor.run(Plan(chunks=[Chunk(neighbour, 0, 45, samples=True), chunks[-1]]))
    assert last.prompt_logprobs is not None
    assert list(last.prompt_logprobs) == [1]
    return last.prompt_logprobs[1]


@pytest.mark.parametrize("lengths", [(70,), (69, 1), (1, 69), (33, 30, 7)])
def test_log_probabilities_of_a_prompt_are_the_same_in_whatever_chunks(
    executor: Executor, lengths: tuple[int, ...]
) -> None:
    whole = prompt_logprobs(executor, "whole", 70, blocks=BLOCKS)
    found = prompt_logprobs(executor, "cut", *lengths)
    assert [each.token_id for each in found] == list(SMALL[1:])
    assert [len(each.top) for each in found] == [3] * 69
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in whole], abs=1e-3)
    assert [each.top[0][0] for each in found] == [each.top[0][0] for each in whole]
    assert all(each.top[0][1] >= each.logprob for each in found)


def test_a_prompt_that_was_preempted_halfway_is_told_of_once_and_whole(executor: Executor) -> None:
    calm = prompt_logprobs(executor, "calm", 70, blocks=BLOCKS)
    asks = SamplingParams(3, temperature=0.0, num_prompt_logprobs=3)
    moved = work("moved", SMALL, asks, ELSEWHERE)
    assert executor.run(Plan(chunks=[Chunk(moved, 0, 50, samples=False)])).prompt_logprobs is None
    moved.block_ids = list(OTHERS)
    first = executor.run(Plan(chunks=[Chunk(moved, 0, 70, samples=True)]))
    assert first.prompt_logprobs is not None
    told = [each.logprob for each in first.prompt_logprobs[0]]
    assert told == pytest.approx([each.logprob for each in calm], abs=1e-3)
    assert first.token_ids[0] is not None
    append(moved, first.token_ids[0])
    again = executor.run(
        Plan(chunks=[Chunk(moved, 0, 71, samples=True)])
    )  # preempted once more, while it decodes
    assert again.prompt_logprobs is None


def test_a_prompt_of_one_token_has_no_log_probabilities_but_an_answer_to_the_question(
    executor: Executor,
) -> None:
    asks = SamplingParams(2, num_prompt_logprobs=0)
    result = executor.run(Plan(chunks=[Chunk(work("one", SMALL[:1], asks, BLOCKS), 0, 1, samples=True)]))
    assert result.prompt_logprobs == {0: []}
