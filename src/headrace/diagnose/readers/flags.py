"""Flags from wherever they stand: a command line, `ps` output, a manifest.

"vllm serve M --max-num-seqs 64"           -> Evidence.flags
ps output, one process a line              -> the processes that serve
Deployment, Compose file, values.yaml      -> command, args and environment of each container
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import yaml

from headrace.core.errors import BadInput
from headrace.diagnose.evidence import Evidence, Flag, Reading, Value
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.readers.text import plain

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?")
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2**10, "M": 2**20, "G": 2**30}
_SERVERS = (
    ("vllm", re.compile(r"\bvllm(?:\.entrypoints\S*| serve)|vllm/vllm-openai|api_server\.py")),
    ("sglang", re.compile(r"\bsglang(?:\.launch_server|\.launch|::| serve)|sglang_router")),
    ("llama.cpp", re.compile(r"\bllama-server|llama\.cpp")),
    ("headrace", re.compile(r"\bheadrace serve")),
)
_MOST_NODES = 100_000
_MOST_WORDS = 10_000
_LONGEST_VALUE = 400


def flag_value(text: str) -> Value | bool:
    """A flag's value as number or switch where it is one: 8k is 8000, 8K is 8192."""
    text = text.strip()
    if text in {"True", "true", "False", "false"}:
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return float(text)
    if found := _SUFFIXED.fullmatch(text):
        return float(found[1]) * _UNITS[found[2]]
    return plain(text)[:_LONGEST_VALUE]


def serving_engine(text: str) -> str:
    """Which server a command starts; empty if none we know."""
    return next((name for name, pattern in _SERVERS if pattern.search(text)), "")


def read_command(text: str, where: str) -> Evidence:
    """One command line. Raises `BadInput` for one that no shell could read."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise BadInput(f"{where}: not a command line: {error}", "is a quote missing?") from error
    image, environment, words = _unpacked(words)
    found = _evidence(words, serving_engine(text), where)
    return found | Evidence(
        version=_version_of(image),
        readings={f"env:{n}": Reading(f"env:{n}", (v,), where) for n, v in environment},
    )


_IMAGE = re.compile(r"(?:[\w.-]+(?::\d+)?/)*[\w.-]*(?:vllm|sglang|llama)[\w./-]*(?::[\w.-]+)?")
_MODULE = re.compile(r"(?:vllm|sglang|headrace)\.")
_ASSIGNED = re.compile(r"[A-Z][A-Z0-9_]+=.*")


def _unpacked(words: list[str]) -> tuple[str, list[tuple[str, str]], list[str]]:
    """(image, environment, the server's own words): of `docker run -e A=1 IMAGE --model M` what is Docker's
    is left out, of `A=1 vllm serve M` what is the shell's.
    """
    given = [plain(word) for word in words if _ASSIGNED.fullmatch(word)]
    environment = [(name, value[:_LONGEST_VALUE]) for name, _, value in (w.partition("=") for w in given)]
    own = [word for word in words if not _ASSIGNED.fullmatch(word)]
    # `python -m sglang.launch_server`: that -m names a program, no model.
    modules = [i for i, pair in enumerate(pairwise(own)) if pair[0] == "-m" and _MODULE.match(pair[1])]
    own = own[modules[0] + 2 :] if modules else own
    if not {"docker", "podman", "nerdctl"} & set(own[:3]):
        return "", environment, own
    at = next((i for i, word in enumerate(own) if _IMAGE.fullmatch(word) and not word.startswith("-")), None)
    return ("", environment, own) if at is None else (own[at], environment, own[at + 1 :])


def _version_of(image: str) -> str:
    tag = re.search(r"vllm[^\s:]*:v?(\d+\.\d+\.\d+\S*)", image)
    return tag[1] if tag else ""


def read_commands(text: str, where: str) -> Evidence:
    """`ps` output or a script: every line that starts a server we know. The flags are of the first."""
    joined = text.replace("\\\n", " ")
    lines = [(n, line) for n, line in enumerate(joined.splitlines(), start=1) if serving_engine(line)]
    if not lines:
        return read_command(joined, where)
    number, first = lines[0]
    container = re.search(r"(?:docker|podman|nerdctl) +run ", first)
    begin = container.start() if container else first.find(_program(first))
    found = read_command(first[begin:], f"{where}:{number}")
    parents = sum(1 for _, line in lines if "--" in line or "serve" in line)
    together = Reading("host:servers_started", (float(parents),), where)
    shares = [_share(line) for _, line in lines]
    share = Reading("host:utilization_sum", (sum(shares),), where)
    # A list of processes shows one that runs, so it took its flags; a script only means to start it.
    runs = Reading("host:server_runs", (float(_OF_PS.match(first) is not None),), where)
    return found | Evidence(readings={r.name: r for r in (together, share, runs)})


_OF_PS = re.compile(r"\s*(?:\S+\s+)?\d+\s")
"""A line of `ps`, `pgrep -a` or `top`: the number of the process, before it perhaps whose it is."""


def _program(line: str) -> str:
    return next((f[0] for _, p in _SERVERS if (f := p.search(line))), "")


def _share(line: str) -> float:
    found = re.search(r"--(?:gpu|device)[-_]memory[-_]utilization[ =](\d*\.?\d+)", line)
    if found:
        return float(found[1])
    # Headrace computes on the CPU, and asks for no share of a card.
    return 0.0 if serving_engine(line) == "headrace" else flag_facts().default("gpu-memory-utilization", None)


def read_manifest(text: str, where: str) -> Evidence:
    """YAML of Kubernetes, Compose or Helm. Raises `BadInput` for what is no YAML."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        reason = plain(str(error)).splitlines()[0][:200]
        raise BadInput(f"{where} is not YAML: {reason}") from error
    words, environment = list[str](), dict[str, Reading]()
    for node in _nodes(documents):
        for key in ("command", "args", "extraArgs", "vllmArgs"):
            words += _words(node.get(key))
        words += _of_chart(node.get("vllmConfig"))
        for name, value in _environment(node):
            environment[f"env:{name}"] = Reading(f"env:{name}", (value,), where)
    image = " ".join(filter(None, map(_image, _nodes(documents))))
    found = _evidence(words, serving_engine(" ".join(words) + " " + image), where)
    probes = {reading.name: reading for reading in _probes(documents, where)}
    return found | Evidence(version=_version_of(image), readings=environment | probes)


def _image(node: Mapping[str, object]) -> str:
    """Of a container; in values of a chart its repository and its tag stand apart."""
    image, repository, tag = (node.get(key) for key in ("image", "repository", "tag"))
    if isinstance(image, str):
        return image
    return f"{repository}:{tag}" if isinstance(repository, str) and isinstance(tag, str | float) else ""


def _of_chart(config: object) -> Iterator[str]:
    """As words of a command, what vLLM's own Helm chart calls maxModelLen and the like."""
    facts = flag_facts()
    for key, value in config.items() if isinstance(config, dict) else ():
        name = re.sub(r"(?=[A-Z])", "-", str(key)).lower()
        if isinstance(value, bool) and facts.is_switch(name):
            yield f"--{name}" if value else f"--no-{name}"
        elif name in facts.options and isinstance(value, str | int | float):
            yield from (f"--{name}", str(value))


_OF_A_PROBE = (
    ("initialDelaySeconds", "initial_delay_s", 0.0),
    ("periodSeconds", "period_s", 10.0),
    ("failureThreshold", "failure_threshold", 3.0),
)
"""Names in Kubernetes, ours, and its defaults."""


def _probes(documents: Sequence[object], where: str) -> Iterator[Reading]:
    """How long a start may take before the liveness probe ends it, and whether a startup probe waits."""
    for node in _nodes(documents):
        probe = node.get("livenessProbe")
        if not isinstance(probe, dict):
            continue
        given = {str(key): value for key, value in probe.items()}
        for name, ours, usual in _OF_A_PROBE:
            value = given.get(name, usual)
            if isinstance(value, int | float):
                yield Reading(f"workload:liveness_{ours}", (float(value),), where)
        yield Reading("workload:startup_probe", (float("startupProbe" in node),), where)


def _nodes(documents: Sequence[object]) -> Iterator[Mapping[str, object]]:
    """All mappings, each once: an alias may stand for a tree in which it stands itself."""
    waiting, seen = list(documents), set[int]()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, dict | list):
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            yield {str(key): value for key, value in node.items()}
            waiting += list(node.values())
        else:
            waiting += node


def _words(value: object) -> list[str]:
    if isinstance(value, list):
        plain_words = [str(item) for item in value[:_MOST_WORDS] if isinstance(item, str | int | float)]
        # `sh -c "vllm serve …"` keeps a whole command in one word.
        return [word for item in plain_words for word in (_split(item) if " --" in item else [item])]
    return _split(value) if isinstance(value, str) else []


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return text.split()


def _environment(node: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    entries = node.get("env")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("value"), str | int | float):
            yield plain(str(entry.get("name")))[:80], plain(str(entry["value"]))[:_LONGEST_VALUE]


def _evidence(words: Sequence[str], engine: str, where: str) -> Evidence:
    flags = dict[str, Flag]()
    model = after = ""
    waiting = list(words[:_MOST_WORDS])
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            if not model and (after == "serve" or _is_model(word)):
                model = word
            after = word
            continue
        name, equals, text = word.lstrip("-").partition("=")
        taken = not equals and _takes_next(name, waiting)
        full, value = named_flag(name, text if equals else (waiting.pop(0) if taken else None))
        flags[full] = Flag(value, where, is_negated=value is False and flag_facts().full_name(name) != full)
    readings = {"workload:model": Reading("workload:model", (plain(model),), where)} if model else {}
    return Evidence(engine=engine, flags=flags, readings=readings, sources=(where,))


def _is_model(word: str) -> bool:
    """A name of a hub, as `org/name`; no path of a program."""
    return (
        word.count("/") == 1 and ":" not in word and word[0] not in "/." and not word.endswith((".py", ".sh"))
    )


def _takes_next(name: str, waiting: Sequence[str]) -> bool:
    if not waiting or flag_facts().is_switch(flag_facts().full_name(name)):
        return False
    return not waiting[0].startswith("-") or _NUMBER.fullmatch(waiting[0]) is not None


def named_flag(written: str, text: str | None) -> tuple[str, Value | bool]:
    """Full name and value: a switch without a value is on, `--no-x` turns x off."""
    name = flag_facts().full_name(written)
    if text is not None:
        return name, flag_value(text)
    if name.startswith("no-") and flag_facts().is_switch(name):
        return name[3:], False
    return name, True
