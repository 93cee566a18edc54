import gzip
import json
import os
from pathlib import Path

import pytest

from headrace.core.errors import BadInput
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Label
from headrace.diagnose.load import load_of
from headrace.diagnose.readers.files import read_file
from headrace.diagnose.readers.flags import read_command, read_commands, read_manifest
from headrace.diagnose.readers.log import FIRST, LAST, MOST_VALUES
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.readers.prometheus import read_range
from headrace.diagnose.readers.results import read_bench_result
from tests.diagnose.samples import of_log, stats

SHARED = Path(os.environ.get("HEADRACE_SHARED", "/nowhere")) / "vllm_samples"
V0 = (
    "INFO 12-20 20:25:46 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation "
    "throughput: 9.1 tokens/s, "
    "Running: 1 reqs, Swapped: 0 reqs, Pending: 3 reqs, GPU KV cache usage: 3.1%, CPU KV cache usage: 0.0%."
)
PAGE = (
    'vllm:num_requests_running{{engine="0"}} {running}\nvllm:generation_tokens_total{{engine="0"}} {made}\n'
)


def test_the_periodic_line_of_both_engines_is_a_series(tmp_path: Path) -> None:
    v1 = of_log(tmp_path, stats(1, 3, 0, 10.0), "noise", stats(2, 5, 7, 97.8))
    v0 = of_log(tmp_path, V0)

    assert v1.series("log:running") == (3, 5)
    assert v1.series("log:kv_usage") == pytest.approx((0.1, 0.978))
    assert v1.where("log:waiting") == "server.log:3"
    assert (v0.number("log:waiting"), v0.number("log:kv_usage")) == (3, pytest.approx(0.031))


def test_engines_of_one_log_stand_apart(tmp_path: Path) -> None:
    e = of_log(tmp_path, stats(1, 3, 0, 10.0), stats(1, 30, 9, 99.0, engine=1))

    assert e.series("log:running{engine=000}") == (3,)
    assert e.series("log:running{engine=001}") == (30,)


def test_flags_and_version_come_from_the_log(tmp_path: Path) -> None:
    e = of_log(
        tmp_path,
        "(APIServer pid=1) INFO 11-29 17:59:29 [x.py:1] non-default args: {'max_model_len': 4096, "
        "'enforce_eager': True}",
        "(EngineCore pid=1) INFO 11-29 17:59:45 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
        "with config: model='m'",
    )

    assert (e.version, e.release) == ("0.32.0", (0, 32, 0))
    assert e.flag("max-model-len") == 4096
    assert e.is_on("enforce-eager")


def test_colours_of_a_terminal_do_not_hide_a_line(tmp_path: Path) -> None:
    e = of_log(tmp_path, f"\x1b[1;36m(EngineCore pid=1)\x1b[0;0m {stats(1, 3, 4, 10.0)}")

    assert e.number("log:waiting") == 4


def test_what_comes_often_is_counted_and_kept_in_part(tmp_path: Path) -> None:
    e = of_log(
        tmp_path, *["torch.OutOfMemoryError: CUDA out of memory."] * 100, *[stats(1, 1, 0, 1.0)] * 9000
    )

    assert e.counts["oom"] == 100
    assert len(e.of("oom")) == FIRST + LAST
    assert e.of("oom")[-1].where == "server.log:100"
    assert 0 < len(e.series("log:running")) <= MOST_VALUES


def test_a_cut_gzip_gives_what_came_before(tmp_path: Path) -> None:
    noise = "".join(f"INFO 11-29 18:00:00 [x.py:1] {os.urandom(30).hex()}\n" for _ in range(2000))
    packed = gzip.compress((stats(1, 3, 4, 10.0) + "\n" + noise).encode())
    (path := tmp_path / "server.log.gz").write_bytes(packed[: len(packed) // 2])

    e = read_file(path)

    assert e.number("log:waiting") == 4
    (note,) = e.notes
    assert "server.log.gz breaks off inside its gzip in line " in note
    assert "at 11-29 18:00:00" in note


def test_cut_json_is_refused_with_where_it_ends(tmp_path: Path) -> None:
    whole = json.dumps({"completed": 1, "request_throughput": 2.0, "errors": [os.urandom(900).hex()]})
    packed = gzip.compress(whole.encode())
    (path := tmp_path / "result.json.gz").write_bytes(packed[: len(packed) // 2])

    with pytest.raises(BadInput, match=r"breaks off inside its gzip in line 1 \(0\.00 MB unpacked\)"):
        read_file(path)


def test_a_detailed_result_of_vllm_bench_fills_what_its_statistics_leave_out() -> None:
    plain = {"completed": 3, "request_throughput": 2.0, "mean_ttft_ms": 5.0, "request_rate": 2.0}
    detailed = plain | {
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.02, 0.04], [0.03], []],
        "queue_times": [0.5, 0.5, 0.5],
        "output_lens": [3, 2, 0],
        "errors": ["", "", "Traceback …\nTimeoutError: \x1b[31mlate"],
    }

    e = read_bench_result(detailed, "r.json")

    assert e.number("client:ttft_mean_ms") == 5.0, "what the file says itself holds"
    assert e.number("client:ttft_median_ms") == pytest.approx(150), "not of the one that failed"
    assert e.number("client:itl_mean_ms") == pytest.approx(30)
    assert e.number("client:client_queue_time_mean_ms") == pytest.approx(500)
    assert e.series("workload:output_tokens") == (3, 2, 0)
    assert e.text("client:error") == "TimeoutError: late"
    closed = read_bench_result(detailed | {"request_rate": "inf", "max_concurrency": 2}, "r.json")
    assert e.readings.keys() - closed.readings.keys() >= {"client:client_queue_time_mean_ms"}
    asked = diagnose(read_bench_result(plain | {"mean_tpot_ms": 9.0}, "r.json")).findings[0].advice.change
    assert "client-side" not in asked
    assert "client-side ITL" in diagnose(read_bench_result(plain, "r.json")).findings[0].advice.change


def test_a_log_wrapped_in_json_lines_is_a_log(tmp_path: Path) -> None:
    lines = [json.dumps({"log": stats(m, 3, m, 10.0) + "\n", "stream": "stderr"}) for m in range(3)]
    (path := tmp_path / "container.log").write_text("\n".join(lines), encoding="utf-8")

    assert read_file(path).series("log:waiting") == (0, 1, 2)


def test_a_line_without_end_is_cut_and_the_next_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "server.log").write_bytes(
        b"INFO x\n" + b"a" * (3 << 20) + b"\n" + stats(1, 3, 4, 1.0).encode()
    )

    e = read_file(path)

    assert e.number("log:waiting") == 4
    assert e.where("log:waiting") == "server.log:3"


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"\x00\x01\x02\x00" * 999, b"{", b'{"a": 1}', b"[" * 100_000, b"Apache License"]
)
def test_what_is_nothing_we_know_is_bad_input(tmp_path: Path, content: bytes) -> None:
    """A text without a word of a server was diagnosed as a server with nothing to change."""
    (path := tmp_path / "x").write_bytes(content)

    with pytest.raises(BadInput):
        read_file(path)


def test_a_manifest_gives_flags_image_version_and_environment() -> None:
    e = read_manifest(
        """
kind: Deployment
spec: {template: {spec: {containers: [{image: "vllm/vllm-openai:v0.11.0",
  args: ["--model=m/x", "--max-num-seqs=64", "--enable-prefix-caching", "--gpu_memory_utilization", "0.85"],
  env: [{name: VLLM_CACHE_ROOT, value: /cache}]}]}}}
""",
        "deployment.yaml",
    )

    assert (e.version, e.engine) == ("0.11.0", "vllm")
    assert (e.flag("max-num-seqs"), e.flag("gpu-memory-utilization")) == (64, 0.85)
    assert e.is_on("enable-prefix-caching")
    assert e.text("env:VLLM_CACHE_ROOT") == "/cache"


def test_yaml_that_doubles_with_every_line_is_read_once() -> None:
    lines = (
        ["a0: &a0 [x, x]"]
        + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
        + ["args: *a59", "kind: x"]
    )

    assert not read_manifest("\n".join(lines), "bomb.yaml").flags


def test_a_command_is_read_as_vllm_reads_it() -> None:
    e = read_command(
        "vllm serve m/x -tp 4 --max-num-se 64 --no-enable-prefix-caching --max-num-batched-tokens 8k", "cmd"
    )

    assert (e.flag("tensor-parallel-size"), e.flag("max-num-seqs"), e.flag("max-num-batched-tokens")) == (
        4,
        64,
        8000,
    )
    assert not e.is_on("enable-prefix-caching")
    assert e.text("workload:model") == "m/x"


def test_ps_output_gives_the_server_and_how_many_there_are() -> None:
    e = read_commands(
        "root 1 0 init\n"
        "u 7 1 python -m vllm.entrypoints.openai.api_server --model a --gpu-memory-utilization 0.6\n"
        "u 8 1 /usr/bin/vllm serve b --gpu-memory-utilization 0.5\n",
        "ps",
    )

    assert e.flag("gpu-memory-utilization") == 0.6
    assert e.number("host:servers_started") == 2
    assert e.number("host:utilization_sum") == pytest.approx(1.1)


def test_servers_on_the_cpu_share_no_card() -> None:
    """Two of ours, without a flag, were said to ask for 1.84 of the card together."""
    e = read_commands("headrace serve smollm2\nheadrace serve smollm2 --port 8001\n", "ps")

    assert e.number("host:servers_started") == 2
    assert e.number("host:utilization_sum") == 0


def test_pages_in_order_give_series_and_rates() -> None:
    pages = [(10.0 * n, read_page(PAGE.format(running=n, made=50 * n).splitlines(), "m")) for n in range(4)]

    e = joined(pages)

    assert e.series("vllm:num_requests_running") == (0, 1, 2, 3)
    assert e.series("server:generation_tok_s") == (5, 5, 5)


def test_an_answer_of_prometheus_is_series_by_instance() -> None:
    body = b"""{"status":"success","data":{"resultType":"matrix","result":[
      {"metric":{"__name__":"vllm:num_requests_running","pod":"a","engine":"0"},"values":[[1,"3"],[61,"4"]]},
      {"metric":{"__name__":"vllm:num_requests_running","pod":"b","engine":"0"},"values":[[1,"30"],[61,"40"]]}]}}"""

    e = read_range(body, "prometheus")

    assert e.series("vllm:num_requests_running") == (33, 44)
    assert e.series("vllm:num_requests_running{engine=b/0}") == (30, 40)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'{"status":"error","error":"bad"}', b'{"status":"success","data":{"result":[]}}'],
)
def test_what_is_no_answer_of_prometheus_is_bad_input(body: bytes) -> None:
    with pytest.raises(BadInput):
        read_range(body, "prometheus")


@pytest.mark.skipif(not SHARED.is_dir(), reason="HEADRACE_SHARED holds the samples")
def test_every_sample_of_a_real_server_is_read() -> None:
    for path in sorted(SHARED.iterdir()):
        e = read_file(path)
        assert e.readings, path
        assert not e.notes, path


@pytest.mark.parametrize(
    ("command", "engine", "version", "flags"),
    [
        (
            "docker run --gpus all -v /d:/d -p 80:80 vllm/vllm-openai:v0.6.3 --model org/m --max-num-seqs 8",
            "vllm",
            "0.6.3",
            {"model": "org/m", "max-num-seqs": 8.0},
        ),
        ("A=1 vllm serve /m -tp 4", "vllm", "", {"tensor-parallel-size": 4.0}),
        ("python3 -m sglang.launch_server --tp 8", "sglang", "", {"tensor-parallel-size": 8.0}),
        ("podman run ghcr.io/ggml-org/llama.cpp:server -c 4096", "llama.cpp", "", {"ctx-size": 4096.0}),
    ],
)
def test_what_is_the_container_s_or_the_shell_s_is_no_flag_of_the_server(
    command: str, engine: str, version: str, flags: dict[str, float | str]
) -> None:
    e = read_command(command, "c")

    assert (e.engine, e.version) == (engine, version)
    assert {name: flag.value for name, flag in e.flags.items()} == flags


def test_metrics_by_their_own_names_in_a_sentence_are_numbers(tmp_path: Path) -> None:
    (path := tmp_path / "story.txt").write_text(
        "After the upgrade to vllm 0.19.0 the TTFT p95 is 6s at peak. num_requests_waiting is 40, "
        "kv_cache_usage_perc 0.35, running 256. flags: --max-num-seqs 256.",
        encoding="utf-8",
    )
    e = read_file(path)
    load = load_of(e)
    assert (load.running, load.waiting, load.kv) == ((256.0,), (40.0,), (0.35,))
    assert [f.claim.partition(" run")[0] for f in diagnose(e).findings] == ["256 requests"]


DESCRIBED = """Name:             llama-6f7d8c9b5-x2x9z
Containers:
  vllm:
    Image:         vllm/vllm-openai:v0.19.1
    Args:
      --model
      meta-llama/Llama-3.1-70B-Instruct
      --tensor-parallel-size
      4
      --enforce-eager
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
Events:
  Warning  Unhealthy  2m (x40 over 10m)  kubelet  Startup probe failed: dial tcp: connection refused
"""


def test_what_kubectl_describes_has_its_arguments_and_says_what_ended_it(tmp_path: Path) -> None:
    (path := tmp_path / "describe.txt").write_text(DESCRIBED, encoding="utf-8")
    e = read_file(path)
    assert (e.version, e.flag("tensor-parallel-size"), e.is_on("enforce-eager")) == ("0.19.1", 4.0, True)
    first = diagnose(e).findings[0]
    assert (first.label, "while it starts" in first.claim) == (Label.HOST_MEMORY, True)


def test_a_log_that_windows_wrote_is_read_as_any_other(tmp_path: Path) -> None:
    line = stats(1, 5, 40, 99.0)
    (path := tmp_path / "server.log").write_bytes(f"{line}\r\n{line}\r\n".encode("utf-16"))
    e = read_file(path)
    assert (load_of(e).waiting, e.where("log:waiting")) == ((40.0, 40.0), "server.log:2")


def test_values_of_vllms_chart_are_flags_and_a_version() -> None:
    e = read_manifest(
        """
servingEngineSpec:
  modelSpec:
  - repository: vllm/vllm-openai
    tag: v0.19.0
    vllmConfig: {maxModelLen: 16384, enablePrefixCaching: false, v1: 1, extraArgs: ["--max-num-seqs", "32"]}
""",
        "values.yaml",
    )
    assert (e.engine, e.version) == ("vllm", "0.19.0")
    assert (e.flag("max-model-len"), e.flag("max-num-seqs")) == (16384.0, 32.0)
    assert not e.is_on("enable-prefix-caching")
    assert "v1" not in e.flags
