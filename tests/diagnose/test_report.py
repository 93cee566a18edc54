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
