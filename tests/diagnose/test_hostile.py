"""Whatever is in a file: a diagnosis or `BadInput`, and nothing that a terminal would obey."""

import io
import json
import tempfile
from pathlib import Path
from time import process_time

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from headrace.core.errors import BadInput
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.readers.files import read_file
from headrace.diagnose.readers.incident import read_incident
from headrace.diagnose.readers.log import patterns
from headrace.diagnose.readers.text import _possible
from headrace.report.diagnosis import diagnosis_json, print_diagnosis
from tests.diagnose.samples import stats

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
WORDS = sorted({word for pattern in patterns() for word in pattern.any})
INCIDENTS = [
    json.loads(line)
    for line in Path(__file__).with_name("incidents.jsonl").read_text(encoding="utf-8").splitlines()
]


def names(part: str) -> st.SearchStrategy[str]:
    """Names that make rules look, of all incidents."""
    return st.sampled_from(sorted({name for incident in INCIDENTS for name in incident.get(part, {})}))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.floats(), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def shown(data: bytes) -> str:
    """Everything that is printed of a file, or nothing if it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "server.log").write_bytes(data)
        try:
            diagnosis = diagnose(read_file(path))
        except BadInput as error:
            return str(error)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_diagnosis(diagnosis, console, details=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue() + json.dumps(diagnosis_json(diagnosis), ensure_ascii=False)


@given(st.binary(max_size=400))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08\x00" + b"\xff" * 40)
def test_any_bytes(data: bytes) -> None:
    shown(data)


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.text(max_size=30)), max_size=8))
def test_lines_that_look_like_a_server_s(lines: list[tuple[str, str]]) -> None:
    shown("\n".join(f"INFO {text}{word}{text}" for word, text in lines).encode("utf-8", "surrogatepass"))


@given(
    st.dictionaries(names("metrics"), VALUES),
    st.dictionaries(names("flags"), VALUES),
    st.dictionaries(names("workload"), VALUES),
    st.dictionaries(names("hardware"), VALUES),
    st.lists(
        st.sampled_from([line for incident in INCIDENTS for line in incident.get("log", [])]), max_size=3
    ),
)
@example({}, {"tensor-parallel-size": 0.5, "VLLM-CPU-OMP-THREADS-BIND": "0-7"}, {}, {}, [])
def test_any_incident_is_judged(
    metrics: dict[str, object],
    flags: dict[str, object],
    workload: dict[str, object],
    hardware: dict[str, object],
    log: list[str],
) -> None:
    parts = {"metrics": metrics, "flags": flags, "workload": workload, "hardware": hardware, "log": log}

    diagnosis = diagnose(read_incident(parts, "x"))

    json.dumps(diagnosis_json(diagnosis))


@given(
    st.recursive(
        VALUES,
        lambda inner: st.dictionaries(st.sampled_from(["flags", "metrics", "log", "a"]), inner),
        max_leaves=8,
    )
)
def test_any_json_is_judged_or_refused(value: object) -> None:
    shown(json.dumps(value).encode())


def test_json_in_json_is_refused() -> None:
    """What the parser still takes and the reader does not: 900 levels ended in a traceback."""
    deep = '{"engine": "vllm", "metrics": ' + '{"a": ' * 900 + "1" + "}" * 901

    assert "deeper than anybody writes" in shown(deep.encode())


def test_no_escape_reaches_the_terminal() -> None:
    lines = [
        f"INFO {ESCAPE} torch.OutOfMemoryError: CUDA out of memory. {ESCAPE}",
        f"vllm: error: unrecognized arguments: --{ESCAPE}x[bold red]",
        f"{ESCAPE}{stats(1, 3, 4, 99.0)}{ESCAPE}",
    ]

    text = shown("\n".join(lines).encode())

    assert not {c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"}
    assert "[bold red]" in text, "words in brackets are words, not markup"


@given(st.binary(max_size=300), st.sets(st.binary(min_size=3, max_size=6), min_size=1, max_size=5))
def test_no_word_that_is_there_is_passed_over(text: bytes, words: set[bytes]) -> None:
    """Words that a block cannot hold are not looked for; that must never be one that it holds."""
    block = b"z" * 5000 + text + b"".join(sorted(words)[:2])

    assert {word for word in words if word in block} <= set(_possible(block, sorted(words)))


PARTS = ("flags", "metrics", "hardware", "workload")
ODD = st.sampled_from([0, -1, 1e9, [], [0, 0], [1, 0], "x", None])


@given(st.data())
def test_any_mixture_of_incidents_is_judged(data: st.DataObject) -> None:
    """What contradicts itself, or has half of its numbers missing, ends in no traceback."""
    chosen = data.draw(st.lists(st.sampled_from(INCIDENTS), min_size=1, max_size=4))
    mixed: dict[str, object] = {"engine": data.draw(st.sampled_from(["vllm", "sglang", "llama.cpp", ""]))}
    for part in PARTS:
        entries = {k: v for incident in chosen for k, v in incident.get(part, {}).items()}
        kept = data.draw(st.sets(st.sampled_from(sorted(entries)))) if entries else set[str]()
        mixed[part] = {name: data.draw(st.one_of(st.just(entries[name]), ODD)) for name in kept}
    mixed["log"] = [line for incident in chosen for line in incident.get("log", [])[:3]]

    json.dumps(diagnosis_json(diagnose(read_incident(mixed, "mixed"))))


@example("a-")
@example("1.")
@example("a/")
@example("7b ")
@example("1,")
@example("7")
@given(st.text(alphabet="a7b-./:,%= k\n", min_size=1, max_size=4))
@settings(max_examples=10, deadline=None)
def test_prose_that_repeats_is_read_in_time_that_grows_with_its_length(unit: str) -> None:
    # A model's name was once sought by a pattern that took 18 s for "a-" 30,000 times over.
    began = process_time()
    assert shown(f"My vLLM server is slow. {unit * 15000}".encode())
    assert process_time() - began < 3
