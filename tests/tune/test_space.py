"""Nothing unsafe is ever in a space, and what is proposed has a reason."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports import Overrides
from headrace.core.settings import Settings
from headrace.tune.space import Demand, Site, Space, demand_of, space_of

GIB = 2**30


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    seqs = draw(st.integers(1, 512))
    longest = draw(st.integers(2, 20_000))
    start: Overrides = {
        "max_num_batched_tokens": draw(st.integers(seqs, 16_384)),
        "max_num_seqs": seqs,
        "long_prefill_token_threshold": 0,
        "max_model_len": draw(st.integers(longest, 131_072)),
        "watermark": 0.0,
        "scheduling_policy": "fcfs",
        "kv_cache_memory_bytes": draw(st.integers(1, 64)) * GIB,
    }
    site = Site(
        start,
        policies=("fcfs", "shortest"),
        kv_tokens=draw(st.none() | st.integers(longest, 10**6)),
        kv_bytes_per_token=draw(st.none() | st.just(131_072.0)),
        headroom_bytes=draw(st.integers(0, 8)) * GIB,
        activation_bytes_per_token=draw(st.sampled_from([0.0, 200_000.0])),
    )
    return space_of(site, Demand(longest, longest, max(1, longest - 1), longest / 2))


def everything(space: Space) -> list[Overrides]:
    names = [lever.name for lever in space.levers]
    found = space.grid(names[:3], 60)
    return [
        *found,
        *space.neighbours({}, 100),
        *(near for each in found[:3] for near in space.neighbours(each, 2)),
    ]


@given(spaces())
def test_no_setting_is_unsafe_however_one_comes_to_it(space: Space) -> None:
    start, site = space.site.start, space.site
    for overrides in everything(space):
        full = {**start, **overrides}
        assert int(full["max_model_len"]) >= space.demand.longest_tokens
        assert int(full["max_num_seqs"]) <= int(full["max_num_batched_tokens"])
        more = int(full["kv_cache_memory_bytes"]) - int(start["kv_cache_memory_bytes"])
        longer = int(full["max_num_batched_tokens"]) - int(start["max_num_batched_tokens"])
        asked = max(0, more) + max(0, longer) * site.activation_bytes_per_token
        assert asked <= site.headroom_bytes
        assert space.is_safe(overrides)
        assert space.canonical(overrides) == overrides
        Settings(
            max_model_len=int(full["max_model_len"]),
            num_gpu_blocks=1000,
            max_num_batched_tokens=int(full["max_num_batched_tokens"]),
            max_num_seqs=int(full["max_num_seqs"]),
            long_prefill_token_threshold=int(full["long_prefill_token_threshold"]),
            watermark=float(full["watermark"]),
        )


@given(spaces())
def test_every_value_of_a_lever_has_a_reason_and_the_start_is_among_them(space: Space) -> None:
    for lever in space.levers:
        assert lever.start in [choice.value for choice in lever.choices]
        assert all(choice.reason for choice in lever.choices)
        assert len({choice.value for choice in lever.choices}) == len(lever.choices)


SITE = Site({"max_num_batched_tokens": 2048, "max_num_seqs": 128, "long_prefill_token_threshold": 0})
DEMAND = demand_of([(100, 20)] * 99 + [(4000, 50)])


def test_what_changes_nothing_is_left_out_of_a_setting() -> None:
    space = space_of(SITE, DEMAND)
    assert space.canonical({"max_num_seqs": 128}) == {}
    assert space.canonical({"long_prefill_token_threshold": 2048}) == {}
    assert space.canonical({"max_num_batched_tokens": 512, "long_prefill_token_threshold": 1024}) == {
        "max_num_batched_tokens": 512
    }


def test_refusals_say_why_with_numbers() -> None:
    space = space_of(Site({**SITE.start, "max_model_len": 8192, "kv_cache_memory_bytes": GIB}), DEMAND)
    said = {
        "2048": space.refuse({"max_num_seqs": 4096}),
        "4,050": space.refuse({"max_model_len": 2048}),
        "1,024 MiB": space.refuse({"kv_cache_memory_bytes": 2 * GIB}),
        "no enforce_eager": space.refuse({"enforce_eager": True}),
    }
    assert all(number in (why or "") for number, why in said.items()), said


def test_a_lever_that_the_server_has_not_got_is_not_searched() -> None:
    names = {lever.name for lever in space_of(SITE, DEMAND).levers}
    assert names == set(SITE.start)


def test_a_context_far_beyond_the_traffic_is_offered_shorter_and_never_too_short() -> None:
    space = space_of(Site({**SITE.start, "max_model_len": 131_072}), DEMAND)
    (lever,) = [each for each in space.levers if each.name == "max_model_len"]
    assert [choice.value for choice in lever.choices] == [8192, 131_072]
    assert "4,050" in lever.choices[0].reason


def test_a_grid_is_thinned_around_the_start_until_it_is_small_enough() -> None:
    space = space_of(SITE, DEMAND)
    names = [lever.name for lever in space.levers]
    assert {} in space.grid(names, 64)
    assert len(space.grid(names, 64)) <= 64 < len(space.grid(names, 10**6))


def test_demand_is_of_whole_requests() -> None:
    assert (DEMAND.longest_tokens, DEMAND.longest_prompt_tokens) == (4050, 4000)
    assert DEMAND.mean_tokens == (99 * 120 + 4050) / 100


def test_a_cache_smaller_than_the_context_that_the_start_allows_refuses_nothing_else() -> None:
    """Such a start runs: that it could not hold one request of full length is no fault of other settings."""
    site = Site({**SITE.start, "max_model_len": 131_072}, kv_tokens=40_000, kv_bytes_per_token=131_072.0)
    space = space_of(site, DEMAND)
    assert space.is_safe({"max_num_batched_tokens": 512})
    assert len(space.grid(["max_num_batched_tokens"], 64)) > 5
