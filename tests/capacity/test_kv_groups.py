"""Groups, blocks and what a request takes: by hand, against logs of vLLM, and whatever the layers."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.capacity.catalogue import model_named
from headrace.capacity.deployment import Deployment
from headrace.capacity.gpu_names import gpu_named
from headrace.capacity.gpus import GIB
from headrace.capacity.kv_groups import KvLayers, Sizing, kv_layout, printed_tokens
from headrace.capacity.memory import layout_of, sizing_of

FULL = KvLayers(32, 4096.0)


def test_a_model_of_full_attention_has_one_group_with_all_of_its_layers() -> None:
    layout = kv_layout([FULL], 16)
    assert (layout.num_groups, layout.bytes_per_block, layout.block_size) == (1, 32 * 16 * 4096, 16)
    assert layout.bytes_per_token == 32 * 4096
    assert layout.blocks_per_request(17, Sizing(2048)) == 2


def test_ten_full_and_fifty_sliding_layers_make_six_groups_of_ten() -> None:
    layout = kv_layout([KvLayers(10, 100.0), KvLayers(50, 100.0, window=1024)], 16)
    assert layout.num_groups == 6
    # 1,023 tokens of the window, 2,048 in flight, and one block more, since a window begins anywhere
    assert layout.blocks_per_request(32_000, Sizing(2048)) == 2000 + 5 * (192 + 1)


def test_two_kinds_of_nearly_as_many_layers_are_padded_to_one_group_each() -> None:
    layout = kv_layout([KvLayers(13, 100.0), KvLayers(12, 100.0, window=128)], 16)
    assert (layout.num_groups, layout.bytes_per_block) == (2, 13 * 1600)


def test_a_chunk_holds_what_came_since_it_began() -> None:
    layout = kv_layout([KvLayers(12, 100.0, window=8192, is_chunked=True), KvLayers(12, 100.0)], 16)
    assert layout.blocks_per_request(65_536, Sizing(2048)) == 4096 + 640


def test_a_state_inflates_the_blocks_until_a_page_of_keys_holds_it() -> None:
    layout = kv_layout([KvLayers(16, 4096.0), KvLayers(48, state_bytes=3_207_168)], 16)
    assert {group.block_size for group in layout.groups} == {784}
    assert layout.blocks_per_request(32_768, Sizing(16_384)) == 42 + 3
    assert layout.blocks_per_request(32_768, Sizing(16_384, state_blocks=2)) == 42 + 6


def logged(model: str, version: str, max_num_batched_tokens: int = 2048) -> Deployment:
    return Deployment(
        model_named(model),
        gpu_named("h200"),
        max_num_batched_tokens=max_num_batched_tokens,
        vllm_version=version,
    )


def test_gemma_4_prints_both_lines_of_its_log() -> None:
    """37,392 tokens and 1.53x for 262,144 in 0.19 (github.com/vllm-project/vllm/issues/39734)."""
    deployment = logged("gemma-4-31b", "0.19")
    layout, sizing = layout_of(deployment), sizing_of(deployment)
    blocks = 37_392 // layout.block_size * layout.num_groups
    assert printed_tokens(layout, blocks, 262_144, sizing, by_groups=True) == 37_392
    assert round(layout.max_concurrency(blocks, 262_144, sizing), 2) == 1.53


def test_gemma_4_needs_more_since_every_step_under_way_counts() -> None:
    """45.79 GiB before 0.26, 70.79 from then on (github.com/vllm-project/vllm/issues/49878)."""
    for version, needed in (("0.25", 45.79), ("0.26", 70.79)):
        deployment = logged("gemma-4-31b", version, 32_768)
        layout = layout_of(deployment)
        blocks = layout.blocks_per_request(262_144, sizing_of(deployment))
        assert round(blocks * layout.bytes_per_block / GIB, 2) == needed


def test_qwen_3_5_prints_both_lines_of_its_log() -> None:
    """290,864 tokens and 33.04x for 32,768 in 0.19 (github.com/vllm-project/vllm/issues/40691)."""
    deployment = logged("qwen3.5-27b", "0.19", 16_384)
    layout, sizing = layout_of(deployment), sizing_of(deployment)
    found = {
        (
            printed_tokens(layout, blocks, 32_768, sizing, by_groups=True),
            round(layout.max_concurrency(blocks, 32_768, sizing), 2),
        )
        for blocks in range(1480, 1490)
    }
    assert (290_864, 33.04) in found


KINDS = st.builds(
    KvLayers,
    st.integers(1, 80),
    st.sampled_from([512.0, 1024.0, 2048.0, 3072.0]),
    st.one_of(st.none(), st.integers(1, 8192)),
)
STATES = st.builds(KvLayers, st.integers(1, 80), state_bytes=st.integers(1, 4_000_000))


@given(
    st.lists(KINDS, min_size=1, max_size=2),
    st.lists(STATES, max_size=1),
    st.integers(0, 5000),
    st.integers(1, 200_000),
)
def test_whatever_the_layers_a_pool_holds_what_it_says(
    kinds: list[KvLayers], states: list[KvLayers], blocks: int, at_most: int
) -> None:
    layout, sizing = kv_layout([*kinds, *states], 16), Sizing(2048)
    longest = layout.longest(blocks, at_most, sizing)
    assert 0 <= longest <= at_most
    if longest:
        assert layout.blocks_per_request(longest, sizing) <= blocks
    if longest < at_most:
        assert layout.blocks_per_request(longest + 1, sizing) > blocks
    per_layer = [
        kind.state_bytes or group.block_size * kind.bytes_per_token
        for group in layout.groups
        for kind in [group.kind]
    ]
    layers = sum(group.count for group in layout.groups) * layout.bytes_per_block
    assert layers >= sum(
        bytes_of_one * group.kind.layers for bytes_of_one, group in zip(per_layer, layout.groups, strict=True)
    )


@given(st.lists(KINDS, min_size=1, max_size=2), st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_longer_request_never_takes_less(kinds: list[KvLayers], one: int, other: int) -> None:
    layout, sizing = kv_layout(kinds, 16), Sizing(512)
    shorter, longer = sorted((one, other))
    assert layout.blocks_per_request(shorter, sizing) <= layout.blocks_per_request(longer, sizing)
