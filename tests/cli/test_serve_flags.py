"""Flags are read as vLLM reads them; strangers are named with what to use instead."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.capacity.kv import kv_bytes_of_share
from headrace.cli.main import main
from headrace.cli.serve import serve
from headrace.cli.vllm_flags import NOWHERE
from headrace.cli.vllm_strangers import SHORT, STRANGERS
from headrace.core.errors import BadInput
from headrace.net.listening import Tls
from tests.cli.test_serve import OPTIONS, decide


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments])


def parsed(*arguments: str) -> dict[str, Any]:
    return serve.make_context("serve", list(arguments)).params


SOME = sorted(STRANGERS)[::20]


@pytest.mark.parametrize("flag", sorted(NOWHERE) + SOME)
def test_a_flag_that_nobody_has_is_refused_with_what_to_do_instead(flag: str) -> None:
    for written in (flag, f"{flag}=1", flag.replace("-", "_").replace("__", "--", 1)):
        refused = run("smollm2", written)
        assert refused.exit_code == 2
        assert (STRANGERS | NOWHERE)[flag] in refused.stderr


@pytest.mark.parametrize(
    ("written", "flag"),
    [
        ("-tp", "--tensor-parallel-size"),
        ("-tp=2", "--tensor-parallel-size"),
        ("-O3", "--optimization-level"),
        ("--tensor_parallel", "--tensor-parallel-size"),
        ("--no-enable-lora", "--no-enable-lora"),
        ("--compilation-config.mode", "--compilation-config"),
        ("--hf-overrides.a.b+", "--hf-overrides"),
    ],
)
def test_every_spelling_of_a_stranger_is_refused_by_its_name(written: str, flag: str) -> None:
    refused = run("smollm2", written, "2")
    assert refused.exit_code == 2
    assert f"vLLM's {flag} is not here: " in refused.stderr


def test_what_is_spelt_short_in_vllm_is_known_by_its_long_name() -> None:
    assert set(SHORT.values()) <= set(STRANGERS)
    assert parsed("m", "--device-memory-utilization", "0.5")["gpu_memory_utilization"] == 0.5
    assert run("--help=all").exit_code == 0


def test_what_replaces_an_old_flag_is_a_flag_that_is_here() -> None:
    known = {name for each in serve.params for name in each.opts}
    words = {word.strip(",;:.") for text in (STRANGERS | NOWHERE).values() for word in text.split()}
    assert {word for word in words if word.startswith("--")} <= known


def test_unique_prefixes_and_underscores_are_read_as_in_vllm() -> None:
    options = parsed(
        "m.gguf", "--kv-cache-mem", "2G", "--max_num_seqs", "4", "--no-enable-prefix", "--served=x"
    )
    assert options["kv_cache_memory_bytes"] == 2 << 30
    assert options["max_num_seqs"] == 4
    assert options["enable_prefix_caching"] is False
    assert options["served_model_name"] == ("x",)


def test_a_prefix_of_two_flags_names_both() -> None:
    refused = run("--max-num-queued", "4")
    assert refused.exit_code == 2
    assert "--max-num-queued-reqs, --max-num-queued-tokens" in refused.stderr


def test_vllms_flags_of_tools_are_taken_and_other_formats_of_calls_are_not() -> None:
    assert parsed("m.gguf", "--enable-auto-tool-choice", "--tool-call-parser", "hermes") == parsed("m.gguf")
    refused = run("--tool-call-parser", "mistral")
    assert refused.exit_code == 2
    assert "'mistral' is not 'hermes'" in refused.stderr


def test_a_misspelt_flag_is_answered_with_the_nearest() -> None:
    refused = run("--max-modle-len", "4")
    assert refused.exit_code == 2
    assert "--max-model-len" in refused.stderr


def test_names_and_keys_may_follow_one_flag_or_several() -> None:
    options = parsed("m", "--served-model-name", "a", "b", "--api-key", "k", "l", "--api-key", "j")
    assert (options["model"], options["served_model_name"]) == ("m", ("a", "b"))
    assert options["api_key"] == ("k", "l", "j")
    assert parsed("--served-model-name", "a", "m")["model"] == "m"


def test_without_a_model_the_built_in_one_is_served() -> None:
    assert parsed("--port", "0")["model"] == "smollm2"


@pytest.mark.parametrize(("text", "read"), [("auto", "auto"), ("-1", "auto"), ("4k", 4000), ("1M", 1 << 20)])
def test_context_lengths_are_read_as_in_vllm(text: str, read: object) -> None:
    assert parsed("m", "--max-model-len", text)["max_model_len"] == read


def test_auto_asks_for_the_models_own_length_and_lets_it_shrink() -> None:
    flags = decide({**OPTIONS, "max_model_len": "auto"}, 8192)
    assert (flags.max_model_len, flags.shrink_max_model_len) == (8192, True)


@pytest.mark.parametrize("flag", ["--shutdown-timeout", "--queue-timeout", "--request-timeout"])
@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon", ""])
def test_what_is_no_time_is_refused(flag: str, text: str) -> None:
    refused = run("m", f"{flag}={text}")
    assert refused.exit_code == 2
    assert "is not a number of seconds" in refused.stderr


# --- the configuration file ----------------------------------------------------------------------------


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "vllm.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_configuration_stands_for_flags_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        "model: m.gguf\nmax-num-seqs: 8\nmax_model_len: 4k\nport: 1234\n"
        "enable-prefix-caching: false\nenable-chunked-prefill: true\nserved-model-name: [a, b]\n",
    )
    options = parsed("--config", path, "--port", "99", "--served-model-name", "c")
    assert (options["model"], options["max_num_seqs"], options["max_model_len"]) == ("m.gguf", 8, 4000)
    assert options["port"] == 99
    assert options["served_model_name"] == ("c",)
    assert options["enable_prefix_caching"] is False
    assert parsed(f"--config={path}", "--enable-prefix-caching")["enable_prefix_caching"] is True
    assert parsed("other", "--config", path)["model"] == "other"


@pytest.mark.parametrize("on", [True, False])
def test_a_switch_without_an_opposite_can_stand_in_a_configuration(tmp_path: Path, on: bool) -> None:
    """`disable-log-stats: true` was refused: it "takes a value"."""
    path = config(tmp_path, f"disable-log-stats: {str(on).lower()}")
    assert parsed("m", "--config", path)["disable_log_stats"] is on


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq: 8", "'max-num-seq' is no flag"),
        ("- a\n- b", "holds no flags"),
        ("", "holds no flags"),
        ("a: [", "cannot read the configuration"),
        ("port: {a: 1}", "takes a value"),
        ("port: true", "takes a value"),
        # These words were taken for the model.
        ("enable-prefix-caching: maybe", "enable-prefix-caching is true or false, not 'maybe'"),
        ("disable-log-stats: [1]", "is true or false"),
        ("config: other.yaml", "is no flag"),
        # Of a key that stands twice the last counted, in silence; of a list for one value, its last.
        ("port: 1\nport: 2", "'port' stands in it more than once"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max-num-seqs stands in it twice"),
        ("port: [8000, 8001]", "port takes a value, not a list of 2"),
        ("served-model-name: []", "served-model-name takes a value, not a list of 0"),
        ("served-model-name: [a, [b]]", "served-model-name takes a value, not a list of 1"),
        ("served-model-name: [a, null]", "served-model-name takes a value, not nothing"),
        ("served-model-name: ['', '']", "'--served-model-name': it is empty"),
        ("api-key: ''", "'--api-key': it is empty"),
        ("model: [a]", "model takes a value, not a list of 1"),
        ("model: null", "model takes a value, not nothing"),
        ("!!python/object/apply:os.system ['true']", "cannot read the configuration"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    refused = run("m", "--config", config(tmp_path, text))
    assert refused.exit_code == 2
    assert words in refused.stderr


def test_a_list_of_lists_of_a_billion_items_is_refused_without_being_written_out(tmp_path: Path) -> None:
    """The message would have held it."""
    lists = ["&a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for inner, name in pairwise("abcdefghi"):
        lists.append(f"&{name} [{', '.join(9 * [f'*{inner}'])}]")
    refused = run("m", "--config", config(tmp_path, f"port: [{', '.join(lists)}]"))
    assert "port takes a value, not a list of 9" in refused.stderr
    assert refused.exit_code == 2


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused = run("--config", str(tmp_path / "none.yaml"))
    assert refused.exit_code == 2
    assert "No such file" in refused.stderr


# --- memory, sockets, certificates ---------------------------------------------------------------------


def test_a_share_of_the_memory_is_for_weights_and_cache_together() -> None:
    assert kv_bytes_of_share(0.5, 1000, 800, 100) == 400


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.9, "800 of 1,000 are free"), (0.05, "the weights alone take 100"), (2, "in \\(0, 1\\]")],
)
def test_a_share_that_cannot_be_had_is_refused_with_the_numbers(share: float, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        kv_bytes_of_share(share, 1000, 800, 100)


def test_certificates_that_cannot_be_used_are_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    broken = tmp_path / "cert.pem"
    broken.write_text("no certificate")
    with pytest.raises(BadInput, match="cannot use the certificate"):
        Tls(str(broken)).check()
    refused = run("no-such-model", "--ssl-certfile", str(broken))
    assert refused.exit_code == 2
    assert "cannot use the certificate" in refused.stderr
    assert run("no-such-model", "--ssl-keyfile", str(broken)).exit_code == 2
