"""Settings put into a manifest that starts vLLM: a compose file, or what is given to Kubernetes.

    text, {"max_num_seqs": 64} --patched--> text        every other byte as it was: comments, quotes, order

The file is not written anew from what was read, which would lose how its people wrote it. A YAML parser
says where the words of the command stand, and only those places change; the result is read again, and where
it does not say what it should nothing is given out.
"""

import difflib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.core.errors import BadInput
from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags, setting_of, value_in

_PLACES = ("args", "extraArgs", "command", "entrypoint")
"""Where a container's words stand; those that are given to a program of the image first."""
_SERVES = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b")


@dataclass(frozen=True, slots=True)
class _Container:
    """What starts one vLLM."""

    line: int
    words: yaml.Node
    """A list of words, or one text of them."""


def read_manifest(path: Path) -> str:
    """Raises `BadInput` where it cannot be read, or starts no vLLM, before anything is measured for it."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"{path} cannot be read: {reason}") from error
    _container_in(text)
    return text


def patched(text: str, settings: Overrides) -> str:
    """Raises `BadInput` where no vLLM is started, more than one is, or its words are beyond us."""
    found = _container_in(text)
    for name, value in settings.items():
        node = _container_in(text).words
        one = {name: value}
        if isinstance(node, yaml.SequenceNode):
            script = _script_of(node)
            text = _in_list(text, node, one) if script is None else _in_text(text, script, one)
        else:
            text = _in_text(text, node, one)
    words = _words_of(_container_in(text).words)
    for name, value in settings.items():
        if not _says(words, name, value):
            raise BadInput(
                f"the manifest's command in line {found.line} cannot be changed safely",
                f"add by hand: {shlex.join(as_flags(settings))}",
            )
    return text


def _says(words: list[str], name: str, value: int | float | bool | str) -> bool:
    if isinstance(value, bool):
        return as_flags({name: value}) == [word for word in words if setting_of(word) == name][-1:]
    return value_in(words, name) == str(value)


def unified_diff(before: str, after: str, path: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path.name}", f"b/{path.name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


# --- where the words stand -----------------------------------------------------------------------


def _container_in(text: str) -> _Container:
    try:
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.YAMLError as error:
        raise BadInput(f"the manifest is no YAML: {str(error).splitlines()[0]}") from error
    found = [each for node in documents for each in _containers(node)]
    if not found:
        raise BadInput(
            "the manifest starts no vLLM: no container has an image or a command of that name, with its "
            f"words under {', '.join(_PLACES)}",
            "a compose file or a Kubernetes manifest with the server that was tuned",
        )
    if len(found) > 1:
        lines = ", ".join(str(each.line) for each in found)
        raise BadInput(
            f"the manifest starts vLLM in {len(found)} places, in lines {lines}",
            "leave only the one that was tuned in the file",
        )
    return found[0]


def _containers(node: yaml.Node) -> Iterator[_Container]:
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _containers(each)
    if not isinstance(node, yaml.MappingNode):
        return
    fields: dict[str, yaml.Node] = {str(key.value): value for key, value in node.value}
    if (words := _place_of_words(fields)) is not None and _is_vllm(fields):
        yield _Container(words.start_mark.line + 1, words)
        return
    for value in fields.values():
        yield from _containers(value)


def _place_of_words(fields: dict[str, yaml.Node]) -> yaml.Node | None:
    """Where flags stand already, else the first place there is."""
    there = [fields[name] for name in _PLACES if name in fields and _words_of(fields[name])]
    with_flags = (node for node in there if any(word.startswith("--") for word in _words_of(node)))
    return next(with_flags, there[0] if there else None)


def _is_vllm(fields: dict[str, yaml.Node]) -> bool:
    image = fields.get("image")
    said = str(image.value) if isinstance(image, yaml.ScalarNode) else ""
    words = [word for name in _PLACES if name in fields for word in _words_of(fields[name])]
    return "vllm" in said.lower() or any("vllm" in Path(word).name for word in words)


def _words_of(node: yaml.Node) -> list[str]:
    """The command's words, whichever way they are written."""
    if isinstance(node, yaml.SequenceNode):
        script = _script_of(node)
        items = [str(each.value) for each in node.value if isinstance(each, yaml.ScalarNode)]
        return items if script is None else _split(str(script.value))
    return _split(str(node.value)) if isinstance(node, yaml.ScalarNode) else []


def _script_of(node: yaml.SequenceNode) -> yaml.ScalarNode | None:
    """The item that a shell is to run, as in `sh -c "vllm serve ..."`."""
    scalars = (each for each in node.value if isinstance(each, yaml.ScalarNode))
    return next((each for each in scalars if len(str(each.value).split()) > 1 and "--" in each.value), None)


def _split(text: str) -> list[str]:
    found = _SERVES.search(text)
    try:
        return shlex.split(text[found.start() :] if found else text, comments=True)
    except ValueError:
        return text.split()


# --- what changes --------------------------------------------------------------------------------


def _in_list(text: str, node: yaml.SequenceNode, one: Overrides) -> str:
    """Replace the items that say the setting, or add it at the end, in the list's own style."""
    (name, value), flags = next(iter(one.items())), as_flags(one)
    items: list[Any] = node.value
    for place in range(len(items) - 1, -1, -1):
        if setting_of(str(items[place].value)) != name:
            continue
        is_pair = "=" not in items[place].value and not isinstance(value, bool)
        if is_pair and place + 1 < len(items):
            return _replaced(text, items[place + 1], f'"{value}"')
        said = f"{flags[0]}={value}" if len(flags) > 1 else flags[0]
        return _replaced(text, items[place], f'"{said}"')
    with_equals = any(re.match(r"--[\w-]+=", str(each.value)) for each in items)
    added = [f"{flags[0]}={value}"] if with_equals and len(flags) > 1 else flags
    quoted = [f'"{word}"' for word in added]
    if node.flow_style:
        end = node.end_mark.index - 1
        return text[:end].rstrip(" ,\n") + "".join(f", {word}" for word in quoted) + text[end:]
    last = items[-1]
    indent = " " * (text.rfind("-", 0, items[0].start_mark.index) - _line_start(text, items[0]))
    end = _end_of_line(text, _end(text, last))
    before_newline = text[:end] if text[:end].endswith("\n") else text[:end] + "\n"
    return before_newline + "".join(f"{indent}- {word}\n" for word in quoted) + text[end:]


def _in_text(text: str, node: yaml.Node, one: Overrides) -> str:
    """Replace the flag where the text has it, or add it at the end of the command."""
    ((name, value),) = one.items()
    flags = " ".join(as_flags(one))
    start, end = node.start_mark.index, _end(text, node)
    raw = text[start:end]
    spelt = name.replace("_", "[-_]")
    pattern = rf"--(?:no-)?{spelt}(?![\w-])" + ("" if isinstance(value, bool) else r"(?:=|\s+)[^\s\"'\\]+")
    if re.search(pattern, raw):
        return text[:start] + re.sub(pattern, lambda _: flags, raw) + text[end:]
    at = start + _end_of_command(raw, getattr(node, "style", None))
    return f"{text[:at]} {flags}{text[at:]}"


def _end_of_command(raw: str, style: str | None) -> int:
    """Where a flag may be added: before a closing quote; at the end of the line where a script goes on."""
    if style in {"'", '"'}:
        return len(raw) - 1
    body = raw.rstrip()
    if style != "|":
        return len(body)
    found = _SERVES.search(raw)
    line_end = raw.find("\n", found.start() if found else raw.find("\n") + 1)
    while line_end != -1 and raw[:line_end].endswith("\\"):
        line_end = raw.find("\n", line_end + 1)
    return len(body) if line_end == -1 else line_end


def _replaced(text: str, node: yaml.Node, by: str) -> str:
    return text[: node.start_mark.index] + by + text[_end(text, node) :]


def _end(text: str, node: yaml.Node) -> int:
    """Of what it says: a parser counts blank lines and comments after a block to it."""
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip())


def _line_start(text: str, node: yaml.Node) -> int:
    return text.rfind("\n", 0, node.start_mark.index) + 1


def _end_of_line(text: str, place: int) -> int:
    found = text.find("\n", place)
    return len(text) if found == -1 else found + 1
