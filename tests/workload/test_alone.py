"""Which requests of a workload are sent alone."""

from headrace.workload.alone import ANSWER_TOKENS, alone_of, shared_share
from headrace.workload.trace import TraceRequest


def test_each_class_has_some_of_its_shorter_and_longer_ones_in_a_fixed_order() -> None:
    rows = [TraceRequest(n, 100 + n, 500, "chat") for n in range(100)] + [TraceRequest(100, 7, 3, "agent")]

    alone = alone_of(rows, 2)

    assert [(each.request_class, each.prompt_tokens, each.output_tokens) for each in alone] == [
        *(("agent", 7, 3), ("agent", 7, 3)),
        *(("chat", 125, ANSWER_TOKENS), ("chat", 175, ANSWER_TOKENS)),
    ]
    assert alone_of(rows, 0) == []


def test_what_is_shared_is_left_out_and_nobody_waits() -> None:
    rows = [
        TraceRequest(
            n, 160 + n, 9, prefix_ids=tuple(range(10)), prefix_block_tokens=16, session="s", think_s=1
        )
        for n in range(3)
    ]

    alone = alone_of(rows, 3)

    assert [each.prompt_tokens for each in alone] == [1, 2, 160]
    assert not any(each.prefix_ids or each.session or each.due_at or each.think_s for each in alone)
    assert shared_share(rows) == 1 - 163 / 483
