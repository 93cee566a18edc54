"""What a person wrote, as evidence: numbers only beside a word that says what they are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadInput
from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Label
from headrace.diagnose.readers.files import read_file
from headrace.diagnose.readers.report import is_report, read_report
from tests.diagnose.samples import first

ISSUE = """\
### vLLM 0.9.2 is slow with long prompts

We run Qwen/Qwen2.5-7B-Instruct on 2x A100 80GB:

```
docker run --gpus all vllm/vllm-openai:v0.9.2 --model Qwen/Qwen2.5-7B-Instruct \\
  --tensor-parallel-size 2 --max-num-seqs 64
```
P99 TTFT is 83 ms alone and 1395 ms under load, GPU utilization drops to 40%, KV cache usage 12%.
| N/A   45C    P0   300W / 700W |  71234MiB / 81559MiB |     38%      Default |
INFO 07-18 19:51:58 [loggers.py:118] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation \
throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 9.9%
"""


def test_an_issue_is_read_with_its_command_its_table_and_its_log_lines() -> None:
    e = read_report(ISSUE, "issue.md")

    assert (e.engine, e.version) == ("vllm", "0.9.2")
    assert e.flag("tensor-parallel-size") == 2
    assert e.flag("max-num-seqs") == 64
    assert e.text("workload:model") == "Qwen/Qwen2.5-7B-Instruct"
    assert e.series("client:ttft_p99_alone_s") == (0.083,)
    assert e.series("client:ttft_p99_under_s") == (1.395,)
    assert e.number("gpu:utilization_perc") in {0.4, 38.0}
    assert e.series("log:waiting") == (4.0,)


def test_a_number_without_a_word_for_it_is_none() -> None:
    e = read_report("vllm on port 8000, 12 of us looked at it for 30 minutes, issue 4711.", "note")

    assert [r.name for r in e.readings.values() if r.numbers] == []


def test_units_decide_what_a_number_can_be() -> None:
    e = read_report("vllm: throughput is 1,200 tok/s, GPU usage 99%, TTFT 2 minutes, RSS 48 GiB", "note")

    assert e.number("client:output_tok_s") == 1200
    assert e.number("gpu:utilization_perc") == 0.99
    assert e.number("client:ttft_s") == 120
    assert e.number("host:rss_gib") == 48


def test_a_log_stays_a_log() -> None:
    log = "INFO 01-01 10:00:00 [core.py:1] something that reads like a sentence here\n" * 5

    assert not is_report(log)
    assert is_report(ISSUE)


@given(st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    diagnose(read_report(text, "x"))


def test_notes_of_an_incident_are_judged_and_a_licence_is_not(tmp_path: Path) -> None:
    notes, licence = tmp_path / "notes.txt", tmp_path / "licence.txt"
    notes.write_text(
        "Since yesterday our vLLM 0.11.0 pods die: CUDA out of memory while serving requests with "
        "prompt_logprobs, the weights load fine.\n"
    )
    licence.write_text("Permission is hereby granted, free of charge, to any person obtaining a copy.\n")

    assert diagnose(read_file(notes)).findings[0].label is Label.OOM_PEAK
    with pytest.raises(BadInput, match="nothing in licence"):
        read_file(licence)


SCRAPE = (
    'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
)


def test_two_scrapes_in_one_file_are_a_series_and_not_a_sum(tmp_path: Path) -> None:
    page, told = tmp_path / "page.txt", tmp_path / "told.txt"
    both = SCRAPE.format(running=1, waiting=14) + SCRAPE.format(running=2, waiting=15)
    page.write_text(both)
    told.write_text("It seems to hang for an hour, here are two scrapes:\n\n" + both)

    for path in (page, told):
        e = read_file(path)
        assert e.series("vllm:num_requests_running") == (1, 2)
        assert e.series("vllm:num_requests_waiting") == (14, 15)


def test_a_table_is_a_sweep_with_its_units() -> None:
    e = read_report(
        "vllm, the same rate with longer answers:\n\n"
        "Output tokens | Actual req/s | Mean TTFT | TPOT p50 (ms)\n"
        "--- | --- | --- | ---\n"
        "128 | 0.95 | 196 ms | 18.2\n"
        "1,024 | 0.24 | 144,074 ms | 18.0\n",
        "note",
    )

    assert e.series("sweep:output_tokens") == (128, 1024)
    assert e.series("sweep:actual_requests_per_s") == (0.95, 0.24)
    assert e.series("sweep:mean_ttft_ms") == (196, 144074)
    assert e.series("sweep:tpot_p50_ms") == (18.2, 18.0)


def test_a_table_of_phases_is_the_parts_of_a_start() -> None:
    e = read_report(
        "vllm starts slowly here:\n| Phase | Time |\n| torch.compile | 166 s |\n| CUDA init | 2.5 min |\n",
        "n",
    )

    assert e.number("startup:torch_compile_s") == 166
    assert e.number("startup:cuda_init_s") == 150


def test_a_situation_may_be_negated_or_be_a_number_of_cards() -> None:
    guided = read_report("vllm is slow:\n- guided: 70 tok/s; not guided: 800 tok/s\n", "n")
    cards = read_report("vllm on 4 A100: 0.2 tok/s. The same on 2 A100: 700 tok/s.", "n")

    assert diagnose(guided).findings[0].label is Label.CPU
    assert diagnose(cards).findings[0].label is Label.INTERCONNECT


def test_a_liveness_probe_that_ends_a_start_is_seen_in_a_manifest(tmp_path: Path) -> None:
    probe = "  livenessProbe: {initialDelaySeconds: 60, periodSeconds: 10, failureThreshold: 3}\n"
    pod = "containers:\n- image: vllm/vllm-openai:v0.11.0\n  args: [--model, org/m]\n"
    bare, guarded = tmp_path / "bare.yaml", tmp_path / "guarded.yaml"
    bare.write_text(pod + probe)
    guarded.write_text(pod + probe + "  startupProbe: {failureThreshold: 60, periodSeconds: 10}\n")

    assert diagnose(read_file(bare)).findings[0].rule == "probe_before_ready"
    assert "probe_before_ready" not in {f.rule for f in diagnose(read_file(guarded)).findings}


def test_what_a_list_of_changes_mended_is_not_wrong_now(tmp_path: Path) -> None:
    """A changelog with "Fixed OOM on long prompts" was a critical finding, with exit code 3."""
    path = tmp_path / "changelog.md"
    path.write_text(
        "# Changes\n\n- Fixed OOM on long prompts.\n* Fix: CUDA out of memory in graphs.\n- Faster.\n"
    )
    with pytest.raises(BadInput, match="nothing in changelog"):
        read_file(path)
    path.write_text("# vLLM\n\nWe see OOM on long prompts since Monday.\n")
    assert first(read_file(path)) is Label.OOM_PEAK
