"""A manifest gets the settings and keeps everything else, however its people wrote the command."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.tune_manifest import patched, read_manifest, unified_diff
from headrace.core.errors import BadInput
from headrace.core.ports import Overrides

COMPOSE = """\
# our chat server
services:
  proxy:
    image: nginx:1   # not ours
    command: ["nginx", "--max-num-seqs", "1"]
  llm:
    image: vllm/vllm-openai:v0.32.0  # pinned
    command: {command}
    ports: ["8000:8000"]  # keep me
"""
KUBERNETES = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      containers:
      - name: llm
        image: registry.local/vllm:0.32
        args:
        - --model
        - meta-llama/Llama-3.1-8B  # weights
        - --max-num-seqs
        - "256"   # as ever
        # what follows belongs to the pod
        resources:
          limits: {nvidia.com/gpu: 1}
---
kind: Service
metadata: {name: llm}
"""
SETTINGS: Overrides = {"max_num_seqs": 64, "long_prefill_token_threshold": 512}


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    lines = unified_diff(before, after, Path("m.yaml")).splitlines()[2:]
    return (
        [line[1:].strip() for line in lines if line.startswith("-")],
        [line[1:].strip() for line in lines if line.startswith("+")],
    )


def test_a_list_of_arguments_changes_in_its_own_lines() -> None:
    removed, added = changed(KUBERNETES, patched(KUBERNETES, SETTINGS))
    assert removed == ['- "256"   # as ever']
    assert added == ['- "64"   # as ever', '- "--long-prefill-token-threshold"', '- "512"']


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "--model m --max-num-seqs 256",
            "--model m --max-num-seqs 64 --long-prefill-token-threshold 512",
        ),
        (
            '"vllm serve m --max_num_seqs=256"',
            '"vllm serve m --max-num-seqs 64 --long-prefill-token-threshold 512"',
        ),
        (
            '["--model", "m", "--max-num-seqs=256"]',
            '["--model", "m", "--max-num-seqs=64", "--long-prefill-token-threshold=512"]',
        ),
        (
            '["sh", "-c", "vllm serve m --port 1"]',
            '["sh", "-c", "vllm serve m --port 1 --max-num-seqs 64 --long-prefill-token-threshold 512"]',
        ),
    ],
)
def test_a_command_keeps_the_way_it_is_written(command: str, expected: str) -> None:
    removed, added = changed(
        COMPOSE.format(command=command), patched(COMPOSE.format(command=command), SETTINGS)
    )
    assert removed == [f"command: {command}"]
    assert added == [f"command: {expected}"]


def test_a_script_that_goes_on_after_the_server_keeps_its_other_lines() -> None:
    script = "|\n      ulimit -n 65535\n      vllm serve m \\\n        --port 8000\n      echo gone"
    _, added = changed(COMPOSE.format(command=script), patched(COMPOSE.format(command=script), SETTINGS))
    assert added == ["--port 8000 --max-num-seqs 64 --long-prefill-token-threshold 512"]


def test_a_folded_text_is_added_to_at_its_end() -> None:
    folded = ">-\n      --model m\n      --port 8000"
    _, added = changed(COMPOSE.format(command=folded), patched(COMPOSE.format(command=folded), SETTINGS))
    assert added == ["--port 8000 --max-num-seqs 64 --long-prefill-token-threshold 512"]


def test_a_switch_is_turned_where_it_stands() -> None:
    before = COMPOSE.format(command="vllm serve --enable-prefix-caching m")
    assert "vllm serve --no-enable-prefix-caching m\n" in patched(before, {"enable_prefix_caching": False})


@given(
    st.dictionaries(
        st.sampled_from(["max_num_seqs", "max_num_batched_tokens", "watermark", "enable_prefix_caching"]),
        st.integers(1, 10**6) | st.floats(0, 1) | st.booleans(),
    )
)
def test_patched_twice_is_patched_once_and_it_stays_yaml(settings: dict[str, int | float | bool]) -> None:
    switches = {name: value for name, value in settings.items() if isinstance(value, bool)}
    switches = {name: value for name, value in switches.items() if name == "enable_prefix_caching"}
    numbers = {name: value for name, value in settings.items() if not isinstance(value, bool)}
    wanted = {**numbers, **switches}
    once = patched(KUBERNETES, dict(wanted))
    assert patched(once, dict(wanted)) == once
    documents = list(yaml.safe_load_all(once))
    assert documents[1] == {"kind": "Service", "metadata": {"name": "llm"}}
    assert documents[0]["spec"]["template"]["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("services: {web: {image: nginx, command: [a]}}", "starts no vLLM"),
        ("a: [1, 2", "no YAML"),
        ("", "starts no vLLM"),
        (KUBERNETES + "---\n" + KUBERNETES, "in 2 places"),
    ],
)
def test_what_cannot_be_patched_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        patched(text, SETTINGS)


def test_a_manifest_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_manifest(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_manifest(tmp_path / "binary.yaml")
