"""`headrace plan`: from every kind of MODEL to a verdict, an exit code, and what to do."""

import json
import re
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants

from headrace.cli.main import main
from headrace.executor import hub as hub_of_executor
from headrace.executor.gguf import GgufHeader
from tests.executor import tiny_gguf
from tests.executor.hub_stand_in import Hub, running

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)], env={"COLUMNS": "80"})


def planned(*arguments: str | Path) -> dict[str, Any]:
    result = plan(*arguments, "--json")
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub, None, None]:
    repositories = {"org/llama": {"config.json": json.dumps(LLAMA).encode()}, "org/bare": {"README.md": b"#"}}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with running(Hub(repositories)) as up:
        monkeypatch.setattr(constants, "ENDPOINT", up.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", up.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield up


def test_what_fits_is_told_with_memory_blocks_and_settings() -> None:
    result = plan("llama-3.1-8b", "--gpu", "h100")
    assert result.exit_code == 0, result.output
    for words in (
        "FITS",
        "weights",
        "14.96",
        "KV blocks",
        "requests of 131,072 tokens at once",
        "interactive",
    ):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert re.search(r"vllm serve meta-llama/Llama-3.1-8B\S* --max-num-batched-tokens \d+", result.stdout)


def test_what_does_not_fit_ends_with_1_and_what_would() -> None:
    result = plan("llama-3.1-70b", "--gpu", "h100", "-tp", "1", "--max-model-len", "8192")
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert "--tensor-parallel-size 2: 2 x h100" in result.stdout


def test_a_length_that_does_not_fit_is_told_the_one_that_does() -> None:
    result = plan("llama-3.1-8b", "--gpu", "l4", "-tp", "1")
    assert result.exit_code == 1
    found = re.search(r"--max-model-len (\d+): the longest", result.stdout)
    assert found is not None
    assert plan("llama-3.1-8b", "--gpu", "l4", "-tp", "1", "--max-model-len", found[1]).exit_code == 0


def test_more_gpus_than_one_are_told_why_unless_asked_for() -> None:
    longest = planned("qwen3-8b", "--gpu", "rtx-4090", "-tp", "1")["kv_cache"]["largest_max_model_len"]
    chosen, asked = (plan("qwen3-8b", "--gpu", "rtx-4090", *more) for more in ((), ("-tp", "2")))
    said = f"--tensor-parallel-size 1 would hold --max-model-len {longest}, not 40960"
    assert said in chosen.stdout
    assert "would hold" not in asked.stdout
    assert re.search(r"size 4 is \d+\.\d GiB short", plan("llama-3.1-405b", "--gpu", "h200").stdout)


def test_the_cards_have_whole_headings_and_the_lengths_they_hold() -> None:
    result = plan("llama-3.1-8b")
    assert "…" not in result.stdout
    assert re.search(r"GPUs +GiB each +weights +KV cache +KV tokens +at once", result.stdout)
    assert "36 of 36 cards hold it at max_model_len 131,072\n" in result.stdout
    each_longest = plan("llama-3.1-8b", "-tp", "1", "--max-model-len", "auto").stdout
    assert re.search(r"at max_model_len [\d,]+ to 131,072\n", each_longest)


def test_a_folder_without_a_config_is_told_so(tmp_path: Path) -> None:
    result = plan(tmp_path, "--gpu", "h100")
    assert result.exit_code == 2
    assert "holds no config.json" in result.stderr


def test_auto_takes_the_longest_that_fits() -> None:
    said = planned("llama-3.1-8b", "--gpu", "l4", "-tp", "1", "--max-model-len", "auto")
    assert said["fits"]
    assert said["settings"]["max_model_len"] == said["kv_cache"]["largest_max_model_len"] < 131_072


def test_without_a_gpu_every_card_is_tried() -> None:
    result = plan("qwen3-32b", "--json")
    assert result.exit_code == 0, result.output
    assert "1 x h200" in result.stdout
    said = json.loads(result.stdout.splitlines()[-1])
    assert {card["gpu"]["name"] for card in said["cards"]} >= {"a100-80", "l4", "mi300x"}


def test_a_model_that_no_card_holds_ends_with_1() -> None:
    result = plan("kimi-k2", "-q", "fp32")
    assert result.exit_code == 1
    assert "0 of" in result.stdout


def test_the_same_shape_comes_from_a_file_a_folder_a_hub_and_numbers(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    numbers = [
        "--layers",
        "32",
        "--hidden-size",
        "4096",
        "--heads",
        "32",
        "--kv-heads",
        "8",
        "--intermediate-size",
        "14336",
    ]
    asked: list[list[str | Path]] = [
        ["llama-3.1-8b"],
        [tmp_path],
        [tmp_path / "config.json"],
        ["org/llama"],
        ["--vocab-size=128256", *numbers],
    ]
    found = [planned(*each, "--gpu", "h100")["kv_cache"] for each in asked]
    assert all(each == found[0] for each in found)
    assert hub.downloads()[0].split()[1].endswith("config.json")


def test_a_gguf_file_weighs_what_it_weighs(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, "Q8_0")
    said = planned(path, "--gpu", "t4", "--max-model-len", "64")
    assert said["memory_bytes"]["weights"] == path.stat().st_size


def test_a_gguf_file_whose_layers_keep_latents_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deepseek.gguf"
    path.touch()
    header = GgufHeader(
        {"general.architecture": "deepseek2", "deepseek2.attention.kv_lora_rank": 512}, 0, frozenset(), ()
    )

    def read_header(path: Path) -> GgufHeader:
        return header

    monkeypatch.setattr("headrace.cli.plan_model.read_header", read_header)
    result = plan(path, "--gpu", "h100")
    assert result.exit_code == 2
    assert "attention.kv_lora_rank" in result.stderr
    assert "config.json of the original" in result.stderr


def test_formats_may_be_said_in_a_file_beside_the_config(tmp_path: Path) -> None:
    """ModelOpt's checkpoints; their config.json alone looks like 16 bits."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plain = planned(tmp_path, "--gpu", "h100")["memory_bytes"]["weights"]
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert planned(tmp_path, "--gpu", "h100")["memory_bytes"]["weights"] < 0.6 * plain


def test_a_card_that_is_not_listed_is_asked_about_by_its_memory() -> None:
    """One plan, and not every card of the catalogue with the same memory."""
    result = plan("llama-3.1-8b", "--gpu-memory", "40G")
    assert result.exit_code == 0, result.output
    assert "a100-40 stands in" in result.stderr
    assert "llama-3.1-8b on 1 x a100-40: FITS" in result.stdout
    assert "40.00    100.0%" in result.stdout


def test_an_encoder_is_told_that_it_keeps_no_kv_cache(tmp_path: Path) -> None:
    bert = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(bert))
    result = plan(path)
    assert result.exit_code == 2
    assert "is an encoder" in result.stderr


def test_weights_in_another_format_are_asked_for_in_two_ways() -> None:
    flag, name = planned("qwen3-8b", "--gpu", "h100", "-q", "awq"), planned("qwen3-8b@int4", "--gpu", "h100")
    assert flag["memory_bytes"] == name["memory_bytes"]
    assert (
        flag["memory_bytes"]["weights"]
        < 0.5 * planned("qwen3-8b", "--gpu", "h100")["memory_bytes"]["weights"]
    )


def test_parameters_that_are_given_count_instead_of_those_worked_out() -> None:
    shape = ("--layers", "32", "--hidden-size", "4096", "--heads", "32", "--parameters", "5e9")
    said = planned(*shape, "--gpu", "h100", "-tp", "1")
    assert said["memory_bytes"]["weights"] == pytest.approx(10_000_000_000, rel=0.001)


@pytest.mark.parametrize(
    ("layers", "hidden", "whole", "said"),
    [
        ("32", "4096", "47e9", "feed-forward layers would be 113,442 wide"),  # a mixture of experts
        ("80", "8192", "8e9", "attention and embeddings take 14.2 alone"),
    ],
)
def test_a_shape_and_a_size_that_do_not_go_together_are_refused(
    layers: str, hidden: str, whole: str, said: str
) -> None:
    """The size counted for memory and the shape for speed: 47 billion parameters were as fast as 8."""
    heads = str(int(hidden) // 128)
    shape = ("--layers", layers, "--hidden-size", hidden, "--heads", heads, "--kv-heads", "8")
    result = plan(*shape, "--parameters", whole, "--gpu", "h100")
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_pool_beyond_the_card_does_not_fit() -> None:
    """It was called FITS, with -174 % of the card left."""
    beyond = plan("llama-3.1-8b", "--gpu", "h100", "--kv-cache-memory-bytes", "200G", "-tp", "1")
    within = plan("llama-3.1-8b", "--gpu", "h100", "--kv-cache-memory-bytes", "40G", "-tp", "1")
    assert (beyond.exit_code, within.exit_code) == (1, 0)
    assert "DOES NOT FIT" in beyond.stdout
    assert "138.0 GiB short on each GPU with 200.0 GiB of KV cache" in " ".join(beyond.stdout.split())


def test_a_workload_says_how_many_of_its_requests_fit(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = ({"timestamp": 100 * n, "input_length": 1000, "output_length": 200} for n in range(100))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = plan("llama-3.1-8b", "--gpu", "l4", "--max-model-len", "auto", "--workload", path)
    assert "run at once when more ask than fit" in result.stdout
    said = planned("llama-3.1-8b", "--gpu", "l4", "--max-model-len", "auto", "--workload", path)
    blocks = said["kv_cache"]["num_gpu_blocks"]
    assert said["workload"]["typical"] == pytest.approx((blocks - 1 - 62 / 2) / 69.25, rel=0.005)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llama-3.1-8",), "did you mean llama-3.1-8b"),
        (("llama-3.1-8b", "--gpu", "h1000"), "did you mean h100"),
        (("llama-3.1-8b", "--gpu", "h10"), "did you mean h100 or h100-nvl or h100-pcie? Of a card"),
        (("llama-3.1-8b", "--gpu", "h100x2"), "--gpu h100 -tp 2"),
        (("8b",), "did you mean llama-3-8b, llama-3.1-8b, qwen3-8b"),
        (("xyzzy",), "one of 78 there, such as llama-3.1-8b"),
        (("model.safetensors",), "the path of a config.json"),
        (("llama-3.1-8b", "--gpu", "h100", "-q", "magic"), "one of fp32"),
        (("qwen2.5-7b", "--gpu", "h100", "-tp", "8"), "one of 1, 2, 4"),
        (("llama-3.1-8b", "--layers", "4"), "the name, or --layers"),
        (("--layers", "4"), "--hidden-size"),
        (("./no/config.json", "--gpu", "h100"), "no file ./no/config.json"),
        (("llama-3.1-8b", "--gpu", "h100", "--vllm-version", "0.1"), "one of 0.18"),
        (("llama-3.1-8b", "--gpu", "h100", "--first", "3"), "--workload"),
        (("llama-3.1-8b", "--gpu", "h100", "--gpu-memory", "24"), "--gpu-memory 24G"),
    ],
)
def test_wrong_input_ends_with_2_and_says_what_would_be_right(arguments: tuple[str, ...], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it may be cut off"),
        ("[1]", "holds no JSON object"),
        ('{"hidden_size": 4096}', "says no num_attention_heads"),
        (json.dumps({**LLAMA, "quantization_config": {"quant_method": "magic"}}), "'magic'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_config_is_an_error_of_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    result = plan(tmp_path, "--gpu", "h100")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_format_that_is_said_stands_for_one_that_is_not_understood(tmp_path: Path) -> None:
    strange = {**LLAMA, "quantization_config": {"quant_method": "hqq"}}
    (tmp_path / "config.json").write_text(json.dumps(strange))
    assert planned(tmp_path, "--gpu", "l4", "-q", "int4")["model"]["weight_format"] == "int4"


def test_the_address_of_a_model_page_names_the_model(hub: Hub) -> None:
    for address in ("https://huggingface.co/org/llama/tree/main", "hf://org/llama"):
        assert planned(address, "--gpu", "h100")["model"]["name"] == "org/llama"


def test_a_hub_that_does_not_answer_is_told_soon_and_the_cache_is_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan("org/llama", "--gpu", "h100").exit_code == 0
    hub.status = 503
    assert plan("org/llama", "--gpu", "h100").exit_code == 0, "from the cache"
    assert "HTTP 503" in plan("org/other", "--gpu", "h100").stderr
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )
    assert "using what is in the cache" in plan("org/llama", "--gpu", "h100").stderr
    began = time.monotonic()
    nothing = plan("org/other", "--gpu", "h100")
    assert time.monotonic() - began < 1.0, "asked once, not six times with pauses"
    assert nothing.exit_code == 1
    assert "config.json or .gguf, or its numbers" in nothing.stderr


def test_a_name_that_is_looked_up_for_ever_is_no_reason_to_wait(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(hub_of_executor, "CONNECT_WITHIN_S", 0.05)

    def looked_up_for_ever(*_: object, **__: object) -> None:
        released.wait(10)
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", looked_up_for_ever)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    nothing = plan("org/other", "--gpu", "h100")
    released.set()
    assert nothing.exit_code == 1
    assert "cannot be reached" in nothing.stderr


def test_a_hub_without_the_model_is_told_what_to_give_instead(hub: Hub) -> None:
    missing, bare = plan("org/nothing", "--gpu", "h100"), plan("org/bare", "--gpu", "h100")
    assert (missing.exit_code, bare.exit_code) == (2, 2)
    assert "there is no org/nothing" in missing.stderr
    assert "has no config.json" in bare.stderr


def test_a_goal_without_the_simulations_that_judge_it_is_refused() -> None:
    """It was ignored, nonsense or not."""
    result = plan("llama-3.1-8b", "--gpu", "h100", "--slo", "gibberish")
    assert result.exit_code == 2
    assert "--fit" in result.stderr
