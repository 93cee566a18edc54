"""Our flags beside vLLM 0.32's own parser, run in its own environment: names, defaults, spellings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.cli.serve import serve
from headrace.cli.vllm_flags import NOWHERE
from headrace.cli.vllm_strangers import SHORT, STRANGERS
from tests.vllm_python import needs_vllm, vllm_says

PARSER = Path(__file__).parent / "vllm_parser.py"

pytestmark = needs_vllm

OURS_DIFFERS = {
    "--host": "ours listens for this machine only; vLLM's for all",
    "--gpu-memory-utilization": "ours leaves half of what is free; on a CPU vLLM would take 92 % of all",
    "--device-memory-utilization": "the same flag",
    "--shutdown-timeout": "ours lets answers end; vLLM's 0 cuts them",
    "--enable-chunked-prefill": "vLLM's None is decided by the model: on, for those served here",
    "--enable-prefix-caching": "the same",
    "--tool-call-parser": "ours has one format, so it need not be asked for",
}
SAME_IN_EFFECT = [
    ["--max-num-batched-tokens", "4k"],
    ["--max_num_batched_tokens=4K"],
    ["--max-num-batched-tokens", "1.5k"],
    ["--max-model-len", "2k"],
    ["--max-num-queued-tokens", "1M"],
    ["--max-num-queued-r=7"],
    ["--max_num_queued_t", "7"],
    ["--kv-cache-memory-bytes", "2G"],
    ["--kv-cache-mem", "2g"],
    ["--kv_cache-memory_bytes", "0.5g"],
    ["--device-memory-utilization", "0.5"],
    ["--gpu-mem=0.25"],
    ["--no-enable-prefix-caching"],
    ["--no_enable_prefix-c"],
    ["--no-enable-chunked"],
    ["--enable-chunked-prefill", "--no-enable-chunked-prefill"],
    ["--no-scheduler-reserve-full-isl"],
    ["--kv-cache-metrics", "--kv-cache-metrics-sample", "0.5"],
    ["--disable-log-stats"],
    ["--scheduling-policy", "priority"],
    ["--watermark", "0.1"],
    ["--long-prefill-token-threshold", "128", "--max-num-seqs", "4", "--port", "1234"],
    ["--port", "1", "--port", "2"],
    ["--served-model-name", "a", "b"],
    ["--api-key", "k", "l"],
    ["--uds", "/tmp/socket", "--ssl-cert-reqs", "2"],
    ["--num-gpu-blocks-override", "64", "--block-size", "16"],
]
REFUSED_BY_BOTH = [
    ["--max-num-batched-tokens", "4X"],
    ["--max-num-batched-tokens", "2GB"],
    ["--max-num-batched-tokens", ""],
    ["--max-num-seqs", "many"],
    ["--max-num-queued", "7"],
    ["--scheduling-policy", "random"],
    ["--kv-cache-metrics=yes"],
    ["--port"],
    ["--swap-space", "4"],
    ["--no-such-flag"],
]


@dataclass(frozen=True)
class Theirs:
    defaults: dict[str, Any]
    """By each name of a flag."""
    read: list[dict[str, Any] | None]


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    lines = [["m", *line] for line in SAME_IN_EFFECT + REFUSED_BY_BOTH]
    said = vllm_says(PARSER, lines)
    return Theirs({n: flag["default"] for flag in said["flags"] for n in flag["names"]}, said["read"])


def ours() -> dict[str, click.Option]:
    options = [each for each in serve.params if isinstance(each, click.Option)]
    return {name: each for each in options for name in (*each.opts, *each.secondary_opts)}


def parsed(line: list[str]) -> dict[str, Any]:
    return serve.make_context("serve", ["m", *line]).params


def test_every_flag_of_vllm_is_here_or_is_refused_with_what_to_do_instead(theirs: Theirs) -> None:
    known = set(theirs.defaults) - {"--help", "-h"}
    off = {name for name in known if "--" + name.removeprefix("--no-") in STRANGERS}
    assert known - set(ours()) - set(STRANGERS) - set(SHORT) - off == set()
    assert set(STRANGERS) - known == set(), "these are no flags of vLLM (any more)"
    assert set(SHORT) - known == {"-O"}, "which its parser turns into a long one before it looks"
    assert not set(STRANGERS) & set(ours())
    assert not set(NOWHERE) & known


def test_no_stranger_is_answered_with_no_such_option(theirs: Theirs) -> None:
    for name in sorted(set(theirs.defaults) - set(ours()) - {"--help", "-h"}):
        refused = CliRunner().invoke(main, ["serve", "m", name, "1"])
        assert refused.exit_code == 2
        assert " is not here: " in refused.stderr, name


def test_defaults_are_vllms_or_differ_on_purpose(theirs: Theirs) -> None:
    values = parsed([])
    for name, option in ours().items():
        if name in theirs.defaults:
            unread = option.default if isinstance(option.default, str) else None
            default = values.get(option.name, unread)
            is_same = default == theirs.defaults[name] or (not default and not theirs.defaults[name])
            assert is_same != (name.replace("--no-", "--") in OURS_DIFFERS), f"{name}: {default}"


def test_a_prefix_that_is_enough_for_vllm_is_enough_here(theirs: Theirs) -> None:
    for name, option in ours().items():
        if name not in theirs.defaults:
            continue
        for length in range(4, len(name)):
            prefix = name[:length]
            if [each for each in theirs.defaults if each.startswith(prefix)] == [name]:
                line = [prefix] if option.is_flag else [prefix, "2"]
                read = serve.make_context("serve", ["m", *line], resilient_parsing=True)
                assert read.args == []


def test_values_are_read_as_vllm_reads_them(theirs: Theirs) -> None:
    for line, read in zip(SAME_IN_EFFECT, theirs.read, strict=False):
        assert read is not None, line
        values = parsed(line)
        changed = {name: value for name, value in values.items() if value != parsed([])[name]}
        assert changed, line
        for name, value in changed.items():
            mine = list(value) if isinstance(value, tuple) else value
            assert mine == read[name], (line, name)


def test_what_vllm_cannot_read_is_refused_here(theirs: Theirs) -> None:
    for line, read in zip(REFUSED_BY_BOTH, theirs.read[len(SAME_IN_EFFECT) :], strict=True):
        assert read is None, line
        assert CliRunner().invoke(main, ["serve", "m", *line]).exit_code == 2, line
