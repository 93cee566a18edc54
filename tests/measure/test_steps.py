"""Steps made by hand: of the shape that was asked for, over blocks of their own, in a fair order."""

from itertools import chain, pairwise

from headrace.core.cost import shape_of
from headrace.core.plan import Plan, Work
from headrace.core.ports import StepResult
from headrace.measure.steps import FEWEST_STEPS, POOL_TOKENS, Cell, Timed, design, time_steps

BLOCK_SIZE = 32


class Noting:
    """Computes nothing and keeps what it was asked."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> StepResult:
        self.plans.append(plan)
        return StepResult([0] * len(plan.chunks))

    def forget(self, work: Work) -> None: ...


def timed(*cells: Cell, seed: int = 0) -> tuple[list[Timed], list[Plan]]:
    executor = Noting()
    steps = time_steps(executor, cells, block_size=BLOCK_SIZE, budget_s=0.0, seed=seed)
    return steps, executor.plans


def test_a_decode_has_the_batch_and_the_context_that_were_asked_for() -> None:
    steps, _ = timed(Cell(8, 320))
    assert {(each.shape.decode_seqs, each.shape.decode_context_tokens) for each in steps} == {(8, 2560)}
    assert all(each.shape.prefill_seqs == 0 for each in steps)


def test_a_chunk_comes_after_what_was_computed_before_and_varies_up_to_the_next_cells() -> None:
    """Lengths near 128 and 256 alone once stood for all: where kernels change, and told 24 % wrong."""
    steps, _ = timed(Cell(prompts=1, prompt_tokens=256, start=512))
    lengths = {each.shape.prefill_tokens for each in steps}
    assert len(lengths) > 30
    assert 256 / 2**0.5 - 1 < min(lengths) < 200
    assert 330 < max(lengths) < 256 * 2**0.5
    assert {each.shape.prefill_context_tokens for each in steps} == {512}


def test_decodes_are_timed_after_a_step_of_another_size_and_after_one_of_the_same() -> None:
    """Once only the first: then every steady batch of a server was told a fifth to a third too slow."""
    steps, _ = timed(Cell(1, 48), Cell(3, 48), Cell(16, 96), Cell(prompts=1, prompt_tokens=24))
    decodes = [each for each in steps if each.cell.decodes]
    assert {each.shape.resized for each in decodes} == {True, False}
    assert {each.cell.decodes for each in decodes if not each.shape.resized} == {1, 3, 16}
    for before, each in pairwise(steps):
        assert each.shape.resized == (each.shape.tokens != before.shape.tokens)


def test_no_two_chunks_of_a_step_read_the_same_block_while_the_pool_lasts() -> None:
    _, plans = timed(Cell(8, 320, 1, 256, 512), Cell(32, 96))
    for plan in plans:
        blocks = list(chain.from_iterable(chunk.work.block_ids for chunk in plan.chunks))
        assert 0 not in blocks
        assert max(blocks) <= POOL_TOKENS // BLOCK_SIZE
        assert len(blocks) == len(set(blocks))


def test_every_token_of_a_chunk_has_a_block() -> None:
    _, plans = timed(*design(8192))
    for plan in plans:
        for chunk in plan.chunks:
            assert len(chunk.work.block_ids) * BLOCK_SIZE >= chunk.start + chunk.tokens
            assert len(chunk.work.token_ids) >= chunk.start + chunk.tokens


def test_without_time_there_are_still_enough_steps_for_a_fit() -> None:
    steps, _ = timed(Cell(1, 48))
    assert len(steps) == FEWEST_STEPS


def test_the_seed_decides_the_order() -> None:
    cells = design(8192)
    first, again, other = ([each.cell for each in timed(*cells, seed=seed)[0]] for seed in (1, 1, 2))
    assert first == again != other


def test_the_design_stays_within_the_context_of_the_model() -> None:
    for longest in (512, 2048, 8192, 100_000):
        for cell in design(longest):
            assert cell.context <= longest
            assert cell.start + 1.41 * cell.prompt_tokens <= min(longest, POOL_TOKENS)


def test_a_cell_says_in_words_what_it_is() -> None:
    assert str(Cell(8, 320, 1, 512, 1024)) == (
        "8 decodes at 320 tokens with a chunk of 512 tokens after 1024"
    )


def test_the_plan_is_what_the_shape_says() -> None:
    steps, plans = timed(Cell(3, 48, 1, 64))
    shape = shape_of(plans[-1])
    shape.resized = steps[-1].shape.resized
    assert steps[-1].shape == shape
    assert plans[-1].num_scheduled_tokens == steps[-1].shape.tokens
