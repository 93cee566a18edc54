"""Write which words a command line of vLLM may use, by version, from the source of its releases.

    python tools/vllm_flags.py FOLDER > src/headrace/diagnose/data/flag_history.toml

FOLDER has a folder for each release, such as FOLDER/0.10.2/vllm. Nothing of it is run: its parser's calls
and the fields that its options are made of are read as syntax.

A word is a flag ("swap-space"), its negation ("no-enable-lora"), a choice ("kv-cache-dtype=fp8") or a
variable ("VLLM_USE_V1").
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PARSERS = (
    "engine/arg_utils.py",
    "entrypoints/openai/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/cli/serve.py",
    "scripts.py",
)
_WHOSE = {"scripts.py": r"serve_parser\.add_argument$"}
"""It has the parsers of `vllm chat` and its like, too."""
_CONFIGS = ("config.py", "config/*.py", "engine/arg_utils.py")
_QUANTIZATION = "model_executor/layers/quantization/__init__.py"
_BACKENDS = (
    ("v1/attention/backends/registry.py", "AttentionBackendEnum"),
    ("attention/backends/registry.py", "AttentionBackendEnum"),
    ("attention/backends/registry.py", "_Backend"),
    ("platforms/interface.py", "_Backend"),
    ("attention/selector.py", "_Backend"),
)
_CHOSEN = {"kv-cache-dtype"}
"""Flags whose choices stand where they are declared."""
_NEGATABLE = {"BooleanOptionalAction"}
_SWITCHED = _NEGATABLE | {"StoreBoolean", "store_true", "store_false"}


@dataclass
class Source:
    """One release's syntax: `fields` of its classes by name, `literals` of its aliases."""

    fields: dict[str, dict[str, ast.AnnAssign]] = field(default_factory=dict[str, dict[str, ast.AnnAssign]])
    literals: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass
class Words:
    every: set[str] = field(default_factory=set[str])
    switches: set[str] = field(default_factory=set[str])


def main() -> None:
    folders = sorted((path for path in Path(sys.argv[1]).iterdir() if path.is_dir()), key=_order)
    before, switches = set[str](), set[str]()
    releases = list[tuple[str, list[str], list[str]]]()
    for folder in folders:
        words = words_of(folder / "vllm")
        releases.append((folder.name, sorted(words.every - before), sorted(before - words.every)))
        before, switches = words.every, switches | words.switches
    print(
        "# Made by tools/vllm_flags.py from the source of vLLM's releases: what each brought and took away."
    )
    print("# The first one has all that was there. A word is a flag, no-flag, flag=choice or VARIABLE.\n")
    print(_list("switches", sorted(switches)))
    for version, came, went in releases:
        print(f'\n[[release]]\nversion = "{".".join(map(str, _order(Path(version))))}"')
        print("\n".join(_list(name, words) for name, words in (("came", came), ("went", went)) if words))


def _order(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", folder.name)[:3])


def _list(name: str, words: Iterable[str]) -> str:
    lines, line = [f"{name} = ["], "   "
    for word in words:
        if len(line) + len(word) > 105:
            lines, line = [*lines, line], "   "
        line += f' "{word}",'
    return "\n".join([*lines, line, "]"])


def words_of(package: Path) -> Words:
    words, source = Words(), _source(package)
    for name in _PARSERS:
        if (path := package / name).is_file():
            _add_declared(
                words, ast.parse(path.read_text("utf-8")), source, _WHOSE.get(name, r"\.add_argument$")
            )
    words.every |= set(_choices(package, source)) | set(_variables(package))
    return words


def _source(package: Path) -> Source:
    found = Source()
    for path in (path for pattern in _CONFIGS for path in sorted(package.glob(pattern))):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                own = {_name(a.target): a for a in node.body if isinstance(a, ast.AnnAssign)}
                found.fields.setdefault(node.name, {}).update(own)
            elif isinstance(node, ast.Assign) and "Literal" in ast.unparse(node.value)[:8]:
                found.literals[_name(node.targets[0])] = tuple(_strings(node.value))
    return found


def _add_declared(words: Words, tree: ast.Module, source: Source, whose: str) -> None:
    """`whose`: a pattern of the calls that count."""
    options = {_name(a.targets[0]): a.value for a in ast.walk(tree) if isinstance(a, ast.Assign)}
    loops = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For)]
    listed = dict[str, list[str]]()
    for loop in loops:
        for target in _targets(loop):
            listed.setdefault(_name(target), []).extend(_strings(loop.iter))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.search(whose, ast.unparse(node.func)):
            given = _given(node, options, source)
            for flag in (text for each in node.args for text in listed.get(_name(each), _strings(each))):
                if re.match("--[a-z]", flag):
                    _add(words, flag[2:].replace("_", "-"), given)
        elif isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            for each in node.body:
                if isinstance(each, ast.AnnAssign):
                    given = "BooleanOptionalAction" if _is_bool(each) else ""
                    _add(words, _name(each.target).replace("_", "-"), given)


def _targets(loop: ast.For) -> list[ast.expr]:
    return loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]


def _add(words: Words, flag: str, given: str) -> None:
    """`given`: what the call says of the flag beside its name, as text."""
    words.every.add(flag)
    if any(action in given for action in _SWITCHED):
        words.switches.add(flag)
    if any(action in given for action in _NEGATABLE):
        words.every.add(f"no-{flag}")
    if flag in _CHOSEN and "choices" in given:
        listed = ast.parse(given.partition("choices=")[2].partition("]")[0] + "]")
        words.every |= {f"{flag}={choice}" for choice in _strings(listed)}


def _given(call: ast.Call, options: dict[str, ast.expr], source: Source) -> str:
    """The keywords of a call; of `**kwargs["field"]`, how a field of its type becomes an option."""
    written = [ast.unparse(keyword) for keyword in call.keywords]
    for part in (
        part for keyword in call.keywords if keyword.arg is None for part in ast.walk(keyword.value)
    ):
        if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Constant):
            continue
        made = options.get(_name(part.value))
        if not isinstance(made, ast.Call) or not made.args:
            continue
        declared = source.fields.get(_name(made.args[0]), {}).get(str(part.slice.value))
        if declared is not None and _is_bool(declared):
            written.append("BooleanOptionalAction")
    return ", ".join(written)


def _is_bool(declared: ast.AnnAssign) -> bool:
    kinds = set(re.findall(r"\w+", ast.unparse(declared.annotation)))
    return "bool" in kinds and not kinds & {"dict", "list", "str"}


def _choices(package: Path, source: Source) -> Iterator[str]:
    for choice in source.literals.get("CacheDType", ()):
        yield f"kv-cache-dtype={choice}"
    for node in _tree(package / _QUANTIZATION):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if _name(target) in {
                "QUANTIZATION_METHODS",
                "QuantizationMethods",
                "_QUANTIZATION_CONFIG_REGISTRY",
            }:
                yield from (f"quantization={choice}" for choice in _strings(node.value))
    for name, kind in _BACKENDS:
        for node in _tree(package / name):
            if isinstance(node, ast.ClassDef) and node.name == kind:
                members = [_name(a.targets[0]) for a in node.body if isinstance(a, ast.Assign)]
                yield from (f"attention-backend={member}" for member in members if member.isupper())


def _variables(package: Path) -> Iterator[str]:
    """The keys of the table that envs.py reads variables by."""
    for node in _tree(package / "envs.py"):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            yield from (str(key) for key in keys if str(key).startswith("VLLM_"))


def _tree(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text("utf-8")).body if path.is_file() else []


def _strings(node: ast.AST) -> list[str]:
    """Strings of a list or Literal, or the keys of a dict."""
    if isinstance(node, ast.Dict):
        return [
            key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _name(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]


if __name__ == "__main__":
    main()
