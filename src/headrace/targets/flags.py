"""Settings as a person would type them: vLLM's names and spellings, the same for both servers.

{"max_num_seqs": 64, "enable_prefix_caching": False}  ->  --max-num-seqs 64 --no-enable-prefix-caching

And back to front: in the words of a command that somebody wrote, a setting is found, replaced or added.
"""

from collections.abc import Sequence

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


def with_settings(words: Sequence[str], overrides: Overrides) -> list[str]:
    """The command with those settings: at their places where it has them, else at its end."""
    said = {name: as_flags({name: value}) for name, value in overrides.items()}
    kept: list[str] = []
    place = 0
    while place < len(words):
        name = setting_of(words[place])
        is_switch = isinstance(overrides.get(name or ""), bool)
        taken = 1 + (_has_value(words, place) and not is_switch)
        if name in overrides:
            kept += said.pop(name, [])  # said twice, the last one held; the first place is as good
        else:
            kept += words[place : place + taken]
        place += taken
    return [*kept, *(word for flags in said.values() for word in flags)]


def value_in(words: Sequence[str], setting: str) -> str | None:
    """What a command says of a setting, the last time; "" for a switch; None where it is silent."""
    found: str | None = None
    for place, word in enumerate(words):
        if setting_of(word) == setting:
            _, equals, value = word.partition("=")
            found = value if equals else words[place + 1] if _has_value(words, place) else ""
    return found


def setting_of(word: str) -> str | None:
    """The setting that a word names, as `--max-num-seqs=64`, `--max_num_seqs` or `--no-max-num-seqs`."""
    if not word.startswith("--") or word == "--":
        return None
    name = word[2:].partition("=")[0].replace("-", "_")
    return name.removeprefix("no_")


def _has_value(words: Sequence[str], place: int) -> bool:
    """Whether the word after a flag is its value: what does not begin as a flag is."""
    is_open = words[place].startswith("--") and "=" not in words[place]
    return is_open and place + 1 < len(words) and not words[place + 1].startswith("--")
