"""Settings become flags that vLLM's own parser, and ours, would read back to the same settings."""

import argparse

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags

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
