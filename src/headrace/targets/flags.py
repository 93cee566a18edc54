"""Settings as a person would type them: vLLM's names and spellings, the same for both servers.

{"max_num_seqs": 64, "enable_prefix_caching": False}  ->  --max-num-seqs 64 --no-enable-prefix-caching
"""

from headrace.core.ports import Overrides


def as_flags(overrides: Overrides) -> list[str]:
    """Command-line words for `overrides`, in the order given."""
    words: list[str] = []
    for name, value in overrides.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words
