"""Settings become flags that vLLM's own parser, and ours, would read back to the same settings."""

import argparse

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags, setting_of, value_in, with_settings

NAMES = st.sampled_from(["max_num_seqs", "watermark", "enable_prefix_caching", "scheduling_policy", "x"])
VALUES = st.booleans() | st.integers(0, 10**6) | st.floats(0, 1) | st.sampled_from(["fcfs", "priority"])


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_flags_read_back_to_the_settings_they_came_from(overrides: Overrides) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name, value in overrides.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, dest=name, type=type(value))
    assert vars(parser.parse_args(as_flags(overrides))) == overrides


def test_switches_are_spelt_as_vllm_spells_them() -> None:
    assert as_flags({"enable_prefix_caching": False, "enable_chunked_prefill": True}) == [
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
    ]
    assert as_flags({"max_num_batched_tokens": 256}) == ["--max-num-batched-tokens", "256"]


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, VALUES, max_size=5))
def test_settings_put_into_a_command_are_those_that_it_says(before: Overrides, after: Overrides) -> None:
    words = ["vllm", "serve", "m", *as_flags(before), "--port", "8000"]
    changed = with_settings(words, after)
    assert changed[:3] == words[:3]
    assert value_in(changed, "port") == "8000"
    for name, value in {**before, **after}.items():
        flags = as_flags({name: value})
        if isinstance(value, bool):
            assert flags == [word for word in changed if setting_of(word) == name]
        else:
            assert value_in(changed, name) == str(value)
    assert with_settings(changed, after) == changed


def test_a_setting_is_found_however_it_is_spelt() -> None:
    assert value_in(["--max_num_seqs=4"], "max_num_seqs") == "4"
    assert value_in(["--max-num-seqs", "4", "--max-num-seqs", "8"], "max_num_seqs") == "8"
    assert value_in(["--no-enable-prefix-caching", "m"], "enable_prefix_caching") == "m"  # no parser to ask
    assert value_in(["serve"], "max_num_seqs") is None
    assert with_settings(["--enable-prefix-caching", "m"], {"enable_prefix_caching": False}) == [
        "--no-enable-prefix-caching",
        "m",
    ]
