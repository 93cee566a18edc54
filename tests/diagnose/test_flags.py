"""Which version has which flag, value and variable, and that advice keeps to it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose.doctor import diagnose
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.flag_facts import NEWEST, flag_facts
from headrace.diagnose.flag_history import history
from headrace.diagnose.missing_flags import MOST_STRANGERS, missing_flags
from headrace.diagnose.readers.flags import read_command, read_manifest
from headrace.diagnose.readers.incident import read_incident
from headrace.diagnose.remarks import remarks
from headrace.diagnose.suited import lacking
from tests.diagnose.samples import findings, first, incident, labels, of_log

INCIDENTS: list[Mapping[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "incidents.jsonl").read_text().splitlines()
]


def of_image(version: str, flags: str) -> str:
    """What the doctor says first of an image's flags."""
    found = findings(read_command(f"docker run vllm/vllm-openai:v{version} --model M {flags}", "command"))[0]
    return " | ".join((found.label, found.claim, *(fact.text for fact in found.facts), found.advice.change))


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("0.18.0", "--swap-space 4", "--swap-space is not in vLLM from 0.18.0 on"),
        ("0.17.1", "--swap-space 4", "in order"),
        ("0.5.0", "--num-scheduler-steps 8", "--num-scheduler-steps came with vLLM 0.5.5"),
        ("0.10.0", "--num-scheduler-steps 8", "in order"),
        ("0.10.1", "--num-scheduler-steps 8", "from 0.10.1 on (there since 0.5.5)"),
        ("0.18.1", "--disable-frontend-multiprocessing", "in order"),
        ("0.19.0", "--disable-frontend-multiprocessing", "from 0.19.0 on"),
        ("0.8.3", "--speculative-model M --num-speculative-tokens 3", "--speculative-config"),
        ("0.8.2", "--speculative-model M --num-speculative-tokens 3", "in order"),
        ("0.12.0", "--cuda-graph-sizes 8", "in order"),
        ("0.13.0", "--cuda-graph-sizes 8", "--cuda-graph-sizes -> --cudagraph-capture-sizes"),
        ("0.28.0", "--max-num-queued-reqs 8", "--max-num-queued-reqs came with vLLM 0.29.0"),
        ("0.12.0", "--attention-backend FLASHINFER", "--attention-backend came with vLLM 0.13.0"),
        (
            "0.13.0",
            "--attention-backend xformers",
            "--attention-backend XFORMERS is not in vLLM from 0.12.0 on",
        ),
        ("0.19.1", "--kv-cache-dtype nvfp4", "--kv-cache-dtype nvfp4 came with vLLM 0.20.0"),
        ("0.20.0", "--kv-cache-dtype nvfp4", "in order"),
        ("0.20.0", "--kv-cache-dtype fp8_e4m33", "did you mean fp8_e4m3?"),
        ("0.32.0", "--quantization gguf", "--quantization gguf is not in vLLM from 0.24.0 on"),
        ("0.6.4", "--no-enable-prefix-caching", "--no-enable-prefix-caching came with vLLM 0.6.5"),
        ("0.6.5", "--no-enable-prefix-caching", "in order"),
        ("0.8.4", "--no-enable-chunked-prefill", "--no-enable-chunked-prefill came with vLLM 0.8.5"),
        ("0.9.0", "--max-num-sqs 8", "did you mean --max-num-seqs?"),
        ("0.9.0", "--max-num-queued-rqs 8", "is no flag of vLLM 0.9 |"),
    ],
)
def test_what_a_version_lacks_is_said_with_when_it_was_there(version: str, flags: str, said: str) -> None:
    assert said in of_image(version, flags)


def test_what_a_newer_flag_took_the_place_of_is_advised_where_it_is_still_there() -> None:
    given = "--attention-backend -> VLLM_ATTENTION_BACKEND, or vLLM 0.13.0 or newer"

    assert given in of_image("0.12.0", "--attention-backend FLASHINFER")
    assert "-> --speculative-model, or" in of_image("0.8.1", "--speculative-config {}")
    assert "-> leave it out, or" in of_image("0.8.1", "--kv-offloading-size 8")


def test_a_build_before_a_release_may_have_what_that_takes_away() -> None:
    assert "in order" in of_image("0.18.0rc1", "--swap-space 4")
    assert "--swap-space" in of_image("0.18.1rc1", "--swap-space 4")


@pytest.mark.parametrize(
    ("version", "variable", "said"),
    [
        ("0.11.1", "VLLM_USE_V1=0", "0.11.1 does not read VLLM_USE_V1: without effect"),
        ("0.14.1", "VLLM_ATTENTION_BACKEND=FLASHINFER", "in order"),
        ("0.15.0", "VLLM_ATTENTION_BACKEND=FLASHINFER", "VLLM_ATTENTION_BACKEND -> --attention-backend"),
        ("0.11.1", "VLLM_ATTENTION_BACKEND=TRITON_ATTN_VLLM_V1", "-> VLLM_ATTENTION_BACKEND=TRITON_ATTN"),
        ("0.4.1", "VLLM_USE_MODELSCOPE=1", "in order"),
    ],
)
def test_a_variable_that_a_version_does_not_read_is_named(version: str, variable: str, said: str) -> None:
    image = f"docker run -e {variable} vllm/vllm-openai:v{version} --model M"
    pod = f"""
    containers:
    - image: vllm/vllm-openai:v{version}
      args: [--model, M]
      env:
      - name: {variable.partition("=")[0]}
        value: "{variable.partition("=")[2]}"
    """
    for evidence in (read_command(image, "command"), read_manifest(pod, "pod.yaml")):
        found = findings(evidence)[0]
        assert said in f"{found.claim} | {found.advice.change}"


@pytest.mark.parametrize(("value", "severity"), [("0", Severity.WARNING), ("1", Severity.NOTE)])
def test_asking_for_what_is_done_anyway_needs_no_change(value: str, severity: Severity) -> None:
    asked = f"docker run -e VLLM_USE_V1={value} vllm/vllm-openai:v0.12.0 --model M"

    assert findings(read_command(asked, "command"))[0].severity is severity


def test_a_flag_from_before_the_history_is_known_to_have_been() -> None:
    assert "--max-paddings is not in vLLM from 0.4.0 on" in of_image("0.5.0", "--max-paddings 256")
    assert "never was a flag of vLLM" in of_image("0.5.0", "--priority-scheduler")


def test_an_unread_variable_ends_a_start_that_is_strict() -> None:
    strict = "docker run -e VLLM_USE_V1=1 vllm/vllm-openai:v0.32.0 --model M --fail-on-environ-validation"

    assert findings(read_command(strict, "command"))[0].severity is Severity.CRITICAL


@pytest.mark.parametrize("flags", [{"attention-backend": "FLASHINFER"}, {"concurrency-of-mine": 8}])
def test_flags_of_a_server_at_work_are_remarked_on_and_no_cause(flags: dict[str, object]) -> None:
    """It took them, or somebody wrote down something else under their name."""
    metrics = {"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0}
    at_work = incident(engine="vllm", version="0.11.0", flags=flags, metrics=metrics)
    alone = incident(engine="vllm", version="0.11.0", flags=flags)

    assert Label.BAD_FLAGS not in labels(at_work)
    assert any(f"--{next(iter(flags))}" in said for said in remarks(at_work))
    assert first(alone) is Label.BAD_FLAGS
    assert not remarks(alone)


def test_arguments_that_a_log_prints_are_held_against_its_version(tmp_path: Path) -> None:
    lines = (
        "INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.18.0",
        "INFO 01-01 00:00:00 [api_server.py:1] non-default args: {'swap_space': 4, 'max_num_seqs': 64}",
    )

    assert findings(of_log(tmp_path, *lines))[0].claim == "vLLM 0.18.0 has no --swap-space"
    assert first(of_log(tmp_path, lines[0].replace("18", "17"), lines[1])) is not Label.BAD_FLAGS


def test_an_unread_variable_of_a_server_at_work_is_a_remark() -> None:
    at_work = incident(
        engine="vllm",
        version="0.15.0",
        flags={"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
        metrics={"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0},
    )

    assert first(at_work) is not Label.BAD_FLAGS
    assert "VLLM_ATTENTION_BACKEND is not in vLLM from 0.15.0 on" in remarks(at_work)[0]


@pytest.mark.parametrize(
    ("version", "refused", "said"),
    [
        ("0.5.0", "--num-scheduler-steps", "came with vLLM 0.5.5"),
        ("0.12.0", "--num-scheduler-steps", "is not in vLLM from 0.10.1 on (there since 0.5.5)"),
        ("0.9.0", "--kv-offloading-size", "came with vLLM 0.11.1"),
    ],
)
def test_a_refused_flag_is_told_by_the_version_of_the_log(
    version: str, refused: str, said: str, tmp_path: Path
) -> None:
    lines = (
        f"INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version {version}",
        f"vllm: error: unrecognized arguments: {refused} 4",
    )

    found = findings(of_log(tmp_path, *lines))[0]

    assert found.label is Label.BAD_FLAGS
    assert said in " ".join(fact.text for fact in found.facts)


def test_the_history_has_a_word_at_most_once_at_a_time() -> None:
    for word, spans in history().spans.items():
        assert all(span.until is None or span.since < span.until for span in spans), word
        assert all(a.until is not None and a.until <= b.since for a, b in pairwise(spans))
    assert history().newest == NEWEST


def test_defaults_are_those_of_the_version() -> None:
    facts = flag_facts()

    assert facts.default("gpu-memory-utilization", (0, 19, 1)) == 0.9
    assert facts.default("gpu-memory-utilization", (0, 20, 0)) == 0.92
    assert facts.default("max-num-batched-tokens", (0, 6, 4)) == 512
    assert facts.default("enable-prefix-caching", (0, 7, 3)) == 0
    assert facts.default("enable-prefix-caching", None) == 1


@pytest.mark.parametrize(
    "version", ["0.4.2", "0.6.6", "0.8.5", "0.10.0", "0.11.2", "0.18.0", "0.24.0", "0.32.0"]
)
def test_no_advice_names_a_flag_that_the_version_lacks(version: str) -> None:
    """Unless it says in which version it is, and what this one has."""
    named = 0
    for value in INCIDENTS:
        evidence = replace(read_incident(value, "incident"), version=version)
        if evidence.engine not in {"vllm", ""}:
            continue
        for finding in diagnose(evidence).findings:
            for text in (finding.advice.change, finding.advice.verify):
                for flag in lacking(text, evidence.release or NEWEST):
                    named += 1
                    assert f"--{flag} came with vLLM" in text or f"--{flag} is not in vLLM" in text, text
    assert named > 0 or version == "0.32.0"


def test_of_very_many_unknown_flags_the_first_hundred_are_told() -> None:
    """Each was held against every flag of the version: 30,000 of them took minutes."""
    e = incident(version="0.32.0", flags={f"strange-{number}": number for number in range(20_000)})
    assert len(list(missing_flags(e))) == MOST_STRANGERS
