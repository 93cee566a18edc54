"""What a rule promises, by mechanism: for each the evidence that makes it speak, and the nearest that does
not."""

from pathlib import Path

import pytest

from headrace.core.bill import Cause
from headrace.diagnose.doctor import RULES, worst_first
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.questions import CANNOT_TELL, answers
from headrace.diagnose.readers.files import read_file
from headrace.diagnose.readers.flags import read_command
from headrace.diagnose.readers.metrics import joined, read_page
from headrace.diagnose.rules.bill import _MEANS
from tests.diagnose.samples import diagnose, findings, first, incident, labels, of_log, stats

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.25 GiB"
)
LOADING = "INFO 01-01 10:00:00 [gpu_model_runner.py:1] Starting to load model m..."
LOADED = "INFO 01-01 10:00:01 [gpu_model_runner.py:1] Model loading took 15.2 GiB memory and 3.1 seconds"
SIZED = "INFO 01-01 10:00:02 [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens"
READY = "INFO:     Application startup complete."


def free_memory(free: float, wanted: float) -> str:
    return (
        f"ValueError: Free memory on device cuda:0 ({free}/22.05 GiB) on startup is less than desired "
        f"GPU memory "
        f"utilization (0.9, {wanted} GiB)."
    )


@pytest.mark.parametrize(
    ("before", "label"),
    [
        ([LOADING], Label.OOM_WEIGHTS),
        ([LOADING, LOADED], Label.OOM_PEAK),
        ([LOADING, LOADED, SIZED], Label.OOM_PEAK),
        ([LOADING, LOADED, SIZED, READY, stats(1, 3, 0, 99.9)], Label.OOM_PEAK),
    ],
)
def test_the_phase_says_whose_memory_was_short(tmp_path: Path, before: list[str], label: Label) -> None:
    assert first(of_log(tmp_path, *before, OOM)) is label


def test_a_full_pool_is_never_an_out_of_memory(tmp_path: Path) -> None:
    said = labels(of_log(tmp_path, READY, stats(1, 30, 9, 100.0), stats(2, 30, 9, 100.0)))

    assert Label.KV_CAPACITY in said
    assert not said & {Label.OOM_KV, Label.OOM_PEAK, Label.OOM_WEIGHTS}


@pytest.mark.parametrize(
    ("line", "label"),
    [(free_memory(0.2, 19.8), Label.NEIGHBOUR), (free_memory(19.77, 19.84), Label.BAD_FLAGS)],
)
def test_a_neighbour_is_told_from_a_share_too_large(tmp_path: Path, line: str, label: Label) -> None:
    assert first(of_log(tmp_path, line)) is label


def test_other_processes_in_the_message_are_a_neighbour(tmp_path: Path) -> None:
    beside = (
        f"{OOM} of which 157.38 MiB is free. Process 1 has 8.96 GiB memory in use. Process 2 has "
        "70.13 GiB memory in use."
    )

    assert Label.NEIGHBOUR in labels(of_log(tmp_path, LOADING, beside))
    assert Label.NEIGHBOUR not in labels(of_log(tmp_path, LOADING, OOM))


def test_the_length_that_fits_is_computed() -> None:
    line = (
        "To serve at least one request with the models's max seq len (1000), (20.00 GiB KV cache is "
        "needed, which is "
        "larger than the available KV cache memory (5.00 GiB)."
    )

    found = findings(incident(log=[line]))[0]

    assert (found.label, found.severity) == (Label.OOM_KV, Severity.CRITICAL)
    assert "--max-model-len 250 " in found.advice.change


def test_requests_sent_back_are_seen_without_a_counter(tmp_path: Path) -> None:
    back = of_log(tmp_path, READY, stats(1, 35, 5, 97.8), stats(2, 29, 11, 97.2))
    ended = of_log(tmp_path, READY, stats(1, 35, 5, 97.8), stats(2, 29, 5, 97.2))

    assert Label.THRASH in labels(back)
    assert Label.THRASH not in labels(ended)


def test_running_culprits_show_without_a_queue() -> None:
    crawl = incident(
        metrics={
            "vllm:num_requests_running": 4,
            "vllm:num_requests_waiting": 0,
            "client:decode_tok_s_min": 0.5,
            "client:decode_tok_s_max": 20,
        }
    )

    assert first(crawl) is Label.QUEUEING


def test_a_threshold_for_long_prefills_is_not_advised_where_it_is_set_or_missing() -> None:
    told = {"prompt_tokens": [130_000, 200], "mix": "long and short"}
    old = incident(flags={"max-num-batched-tokens": 2048}, workload=told, version="0.5.0")
    set_already = incident(
        flags={"max-num-batched-tokens": 2048, "long-prefill-token-threshold": 512}, workload=told
    )

    assert "newer version" in findings(old)[0].advice.change
    assert Label.QUEUEING not in labels(set_already)


def test_which_budget_the_queue_waits_for(tmp_path: Path) -> None:
    tokens = [stats(m, 10 + m, 90 - m, 20.0 + m, prompt=24_000.0, generated=20.0) for m in range(4)]
    slots = incident(
        flags={"max-num-seqs": 64},
        metrics={
            "vllm:num_requests_running": [64, 64],
            "vllm:num_requests_waiting": [9, 30],
            "vllm:kv_cache_usage_perc": 0.4,
        },
    )

    assert findings(of_log(tmp_path, READY, *tokens))[0].rule == "prompts_faster_than_prefill"
    assert "replicas" in findings(of_log(tmp_path, READY, *tokens))[0].advice.change
    assert findings(slots)[0].rule == "no_slot"


def test_a_queue_that_waited_before_the_pool_was_full_is_its_own_finding(tmp_path: Path) -> None:
    filling = [stats(m, 5 + m, 35 - m, 10.0 + 10 * m, prompt=900.0, generated=1.0) for m in range(7)]
    full = [stats(8, 35, 5, 97.8, prompt=0.0), stats(9, 29, 11, 97.2, prompt=0.0)]

    both = labels(of_log(tmp_path, READY, *filling, *full))
    only_full = labels(of_log(tmp_path, READY, *full))

    assert both >= {Label.QUEUEING, Label.THRASH}
    assert Label.QUEUEING not in only_full


def test_an_engine_that_stands_still_is_no_queue(tmp_path: Path) -> None:
    e = of_log(tmp_path, READY, *[stats(m, 0, 12, 5.0, prompt=0.0, generated=0.0) for m in range(4)])

    assert labels(e) == {Label.STALL}
    assert diagnose(e).severity is Severity.CRITICAL


def test_an_ordinary_stop_is_no_dead_engine(tmp_path: Path) -> None:
    dead = (
        "ERROR 11-29 18:06:51 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue."
    )
    stop = "INFO 11-29 18:06:51 [launcher.py:254] [shutdown] API server: shutdown triggered"

    assert Label.STALL in labels(of_log(tmp_path, READY, dead))
    assert Label.STALL not in labels(of_log(tmp_path, READY, stop, dead))


def test_ranks_are_read_one_by_one(tmp_path: Path) -> None:
    uneven = of_log(tmp_path, READY, stats(1, 27, 40, 60.0), stats(1, 1, 0, 1.0, engine=1))
    even = of_log(tmp_path, READY, stats(1, 27, 0, 60.0), stats(1, 25, 0, 58.0, engine=1))

    assert first(uneven) is Label.DP_IMBALANCE
    assert Label.DP_IMBALANCE not in labels(even)


def test_ttft_in_neither_queue_nor_prefill_is_the_front_end() -> None:
    page = (
        "vllm:time_to_first_token_seconds_sum 62.6\nvllm:time_to_first_token_seconds_count 16\n"
        "vllm:request_queue_time_seconds_sum 0.002\nvllm:request_queue_time_seconds_count {ended}\n"
        "vllm:request_prefill_time_seconds_sum 41.5\nvllm:request_prefill_time_seconds_count {ended}\n"
    )

    assert Label.CPU in labels(read_page(page.format(ended=16).splitlines(), "m"))
    # Queue and prefill are observed when a request ends: with most still running the difference says nothing.
    assert Label.CPU not in labels(read_page(page.format(ended=3).splitlines(), "m"))


def test_misses_that_are_right_are_called_so() -> None:
    short = incident(
        metrics={"vllm:prefix_cache_hits_total": 0, "vllm:prefix_cache_queries_total": 90_000},
        log=["Setting attention block size to 784 tokens to ensure that"],
        workload={"shared_prefix_tokens": 240},
    )
    nothing_shared = incident(
        metrics={"vllm:prefix_cache_hits_total": 0, "vllm:prefix_cache_queries_total": 90_000}
    )

    assert "rightly so" in findings(short)[0].claim
    assert Label.PREFIX_MISS not in labels(nothing_shared)


def test_a_quantile_in_the_first_bucket_says_nothing_more() -> None:
    assert first(incident(metrics={"promql:queue_p99": 0.297})) is Label.MEASUREMENT
    assert Label.MEASUREMENT not in labels(incident(metrics={"promql:queue_p99": 0.21}))


def test_slower_with_uptime_is_not_explained_by_a_guess() -> None:
    found = findings(
        incident(metrics={"client:ttft_p99_ms_fresh": 4600, "client:ttft_p99_ms_warm_60min": 11500})
    )

    assert found[0].label is Label.UNDETERMINED
    assert "No restarts" in found[0].advice.change


def test_a_proxy_that_buffers_is_told_from_one_that_is_slow() -> None:
    slow = {"client:ttft_p50_ms_direct": 22, "client:ttft_p50_ms": 280}
    buffers = slow | {"client:itl_p50_ms_direct": 5.5, "client:itl_p50_ms": 1.6}

    assert "buffers" in findings(incident(metrics=buffers))[0].claim
    assert "buffers" not in findings(incident(metrics=slow))[0].claim


def test_flags_are_judged_by_the_version_that_is_there() -> None:
    flags = {"swap-space": 4}

    assert Label.BAD_FLAGS in labels(incident(flags=flags, version="0.20.0"))
    assert Label.BAD_FLAGS not in labels(incident(flags=flags, version="0.6.0"))
    running = {"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0}
    assert Label.BAD_FLAGS not in labels(incident(flags=flags, metrics=running)), "a server at work has it"


@pytest.mark.parametrize(
    ("command", "severity", "said"),
    [
        ("vllm serve M --swap-space 4", Severity.WARNING, "an older one may"),
        ("vllm serve M --request-timeout 4", Severity.CRITICAL, "vLLM has no --request-timeout"),
        ("vllm serve M --max-num-sqs 4", Severity.WARNING, "vLLM 0.32 has no --max-num-sqs"),
        ("docker run vllm/vllm-openai:v0.19.0 --model M --swap-space 4", Severity.CRITICAL, "0.19.0 has no"),
        ("docker run vllm/vllm-openai:v0.32.0 --model M --max-num-sqs 4", Severity.CRITICAL, "0.32.0 has no"),
        ("docker run vllm/vllm-openai:v0.8.5 --model M --watermark 0.1", Severity.CRITICAL, "0.8.5 has no"),
    ],
)
def test_flags_alone_are_held_against_the_version_or_the_newest(
    command: str, severity: Severity, said: str
) -> None:
    found = findings(read_command(command, "command"))

    assert [(f.label, f.severity) for f in found] == [(Label.BAD_FLAGS, severity)]
    assert said in found[0].claim


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve M -O3 -tp 2 --compilation-config.mode 3 -cc.mode=3 --no-enable-prefix-caching",
        "vllm serve M --served-model-name a b --max-num-seq 3 --lora-modules a=b --max-num-batched-tokens=8k",
        "docker run vllm/vllm-openai:v0.33.0 --model M --of-some-version 4",
        "docker run vllm/vllm-openai:v0.9.1 --model M --api-server-count 2",
    ],
)
def test_a_flag_that_the_version_may_have_is_not_called_missing(command: str) -> None:
    assert first(read_command(command, "command")) is Label.UNDETERMINED


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("vllm: error: unrecognized arguments: --swap-space 4", "--kv-offloading-size"),
        ("vllm: error: unrecognized arguments: --max-num-sqs 4", "--max-num-sqs -> --max-num-seqs"),
        ("vllm: error: argument --max-num-seqs: expected one argument", "a value"),
        ("TypeError: EngineArgs.__init__() got an unexpected keyword argument 'swap_space'", "--kv-off"),
        ("TypeError: RopeConfig.__init__() got an unexpected keyword argument 'rope_x'", "versions"),
    ],
)
def test_what_ends_a_start_is_the_finding_with_what_takes_its_place(
    tmp_path: Path, line: str, change: str
) -> None:
    path = tmp_path / "start.log"
    path.write_text(f"usage: vllm serve [model_tag] [options]\n{line}\n", encoding="utf-8")

    found = findings(read_file(path))

    assert [(f.label, f.severity) for f in found] == [(Label.BAD_FLAGS, Severity.CRITICAL)]
    assert change in found[0].advice.change


def test_worst_comes_first_among_what_has_good_evidence() -> None:
    def finding(confidence: float, severity: Severity) -> Finding:
        return Finding(Label.CPU, "", (), Advice(""), severity, confidence)

    sure_note, weak_warning = finding(0.9, Severity.NOTE), finding(0.5, Severity.WARNING)
    good_warning, good_critical = finding(0.75, Severity.WARNING), finding(0.65, Severity.CRITICAL)

    assert worst_first([sure_note, good_warning, weak_warning, good_critical]) == [
        good_critical,
        good_warning,
        sure_note,
        weak_warning,
    ]


def test_what_circulates_and_is_wrong_is_not_advised(tmp_path: Path) -> None:
    full = [READY, stats(1, 30, 9, 100.0), stats(2, 28, 11, 100.0)]
    for e in (of_log(tmp_path, *full), of_log(tmp_path, LOADING, OOM)):
        for finding in findings(e):
            words = finding.advice.change.lower()
            assert "swap" not in words
            assert "restart every" not in words
            assert not (finding.label is Label.OOM_WEIGHTS and "utilization" in words)


def test_a_server_at_work_without_waits_is_healthy_and_nothing_at_all_is_not_known(tmp_path: Path) -> None:
    healthy = diagnose(of_log(tmp_path, READY, *[stats(m, 5, 0, 30.0) for m in range(6)]))
    empty = diagnose(incident())

    assert healthy.findings == ()
    assert [f.label for f in empty.findings] == [Label.UNDETERMINED]
    assert all(CANNOT_TELL in a.answer for a in answers(empty)[:4])


def test_peaks_are_told_from_steady_want(tmp_path: Path) -> None:
    def third(*waiting: int) -> str:
        e = of_log(tmp_path, READY, *[stats(m, 5, w, 30.0) for m, w in enumerate(waiting)])
        return answers(diagnose(e))[2].answer

    assert third(0, 0, 9, 0, 0, 0) == "peaks"
    assert third(9, 9, 9, 8, 9, 9).startswith("steady")
    assert third(0, 0, 0, 0, 0, 0).startswith("no waits")
    assert third(9).startswith(CANNOT_TELL)


def test_a_server_that_does_not_start_has_an_answer_to_every_question(tmp_path: Path) -> None:
    refused = "vllm serve: error: unrecognized arguments: --swap-space 16"
    for e in (of_log(tmp_path, LOADING, OOM), of_log(tmp_path, refused)):
        said = answers(diagnose(e))
        assert not [a.question for a in said if CANNOT_TELL in a.answer or not a.facts]
        assert said[0].answer.startswith("neither")
        assert said[3].answer.startswith("settings")


def test_a_crash_of_a_server_at_work_is_no_failed_start(tmp_path: Path) -> None:
    e = of_log(tmp_path, READY, *[stats(m, 5, 0, 30.0) for m in range(6)], OOM)
    assert "not start" not in answers(diagnose(e))[0].answer


def test_a_full_pool_of_which_nothing_runs_is_no_lack_of_kv(tmp_path: Path) -> None:
    idle = of_log(tmp_path, READY, *[stats(m, 0, 0, 95.0) for m in range(6)])
    busy = of_log(tmp_path, READY, *[stats(m, 5, 3, 95.0) for m in range(6)])

    assert Label.KV_CAPACITY in {f.label for f in findings(busy)}
    assert Label.KV_CAPACITY not in {f.label for f in findings(idle)}


def test_every_rule_says_on_what_mechanism_it_rests() -> None:
    for rule in RULES:
        assert len((rule.__doc__ or "").split()) >= 8, rule.__name__
        for empty in (incident(), incident(flags={"max-num-seqs": 1})):
            list(rule(empty))


def test_our_own_server_names_the_budget_while_requests_wait() -> None:
    name = "headrace:waiting_seconds_total"
    page = name + '{{budget="kv"}} {kv}\n' + name + '{{budget="slots"}} 0.5\n'
    pages = [(float(n), read_page(page.format(kv=4.0 * n).splitlines(), "m")) for n in range(3)]

    assert first(joined(pages)) is Label.KV_CAPACITY
    assert first(joined(pages[:1])) is Label.UNDETERMINED, "one sample says nothing of now"
    assert set(_MEANS) == set(Cause)


@pytest.mark.parametrize(("tokens", "starts"), [("63", False), ("64", True)])
def test_fewer_tokens_a_step_than_requests_is_no_start(tokens: str, starts: bool) -> None:
    command = f"vllm serve M --max-num-seqs 64 --max-num-batched-tokens {tokens}"
    found = diagnose(read_command(command, "command")).findings
    assert [f.severity for f in found if f.label is Label.BAD_FLAGS] == (
        [] if starts else [Severity.CRITICAL]
    )


def test_advice_for_prompts_that_wait_has_its_arithmetic() -> None:
    load = {
        "vllm:num_requests_running": [10, 11],
        "vllm:num_requests_waiting": [30, 40],
        "vllm:kv_cache_usage_perc": 0.3,
        "log:prompt_tok_s": [20_000, 12_000],
        "log:generation_tok_s": [20, 20],
    }
    large, small = (
        findings(
            incident(metrics=load, flags={"max-num-batched-tokens": tokens}, workload={"prompt_tokens": 4000})
        )[0].advice
        for tokens in (8192, 256)
    )

    assert "2 replicas" in large.change
    assert "8.0 s of reading for one server, 4.0 s for 2" in large.effect
    assert "from 256 to 2048" in small.change
    assert "2 steps instead of 16" in small.effect
