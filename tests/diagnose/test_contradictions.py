"""What vLLM refuses together, by version: said from the flags, and of nothing that it takes."""

from pathlib import Path

import pytest

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Label, Severity
from headrace.diagnose.readers.flags import read_command
from headrace.diagnose.rules.contradictions import CHECKS, contradictions
from tests.diagnose.samples import findings, first, incident, labels, of_log

MISTRAL, LLAMA = "mistralai/Mistral-7B-v0.1", "meta-llama/Llama-3.1-8B-Instruct"

EAGLE = "--speculative-config.method eagle --speculative-config.num_speculative_tokens 3"
REFUSED = [
    # check, version, flags, hardware, and the same with what makes it right
    (
        "_fewer_tokens_than_length",
        "0.6.0",
        "M --max-num-batched-tokens 2048 --max-model-len 8192",
        "",
        "M --max-num-batched-tokens 2048 --max-model-len 8192 --enable-chunked-prefill",
    ),
    (
        "_fewer_tokens_than_length",
        "0.32.0",
        "M --max-num-batched-tokens 2048 --max-model-len 8192 --no-enable-chunked-prefill",
        "",
        "M --max-num-batched-tokens 2048 --max-model-len 8192",
    ),
    (
        "_fewer_tokens_than_usual_slots",
        "0.9.0",
        "M --max-num-batched-tokens 128",
        "",
        "M --max-num-batched-tokens 128 --max-num-seqs 64",
    ),
    (
        "_threshold_beyond_length",
        "0.12.0",
        "M --long-prefill-token-threshold 9000 --max-model-len 8192",
        "",
        "M --long-prefill-token-threshold 900 --max-model-len 8192",
    ),
    (
        "_more_active_than_slots",
        "0.32.0",
        "M --max-num-active-seqs 65 --max-num-seqs 64",
        "",
        "M --max-num-active-seqs 64 --max-num-seqs 64",
    ),
    ("_share_above_one", "0.32.0", "M --gpu-memory-utilization 90", "", "M --gpu-memory-utilization 0.9"),
    (
        "_fewer_adapters_in_memory",
        "0.9.0",
        "M --enable-lora --max-loras 4 --max-cpu-loras 2",
        "",
        "M --enable-lora --max-loras 4 --max-cpu-loras 4",
    ),
    (
        "_rank_not_offered",
        "0.7.0",
        "M --enable-lora --max-lora-rank 512",
        "",
        "M --enable-lora --max-lora-rank 256",
    ),
    (
        "_rank_not_offered",
        "0.32.0",
        "M --enable-lora --max-lora-rank 100",
        "",
        "M --enable-lora --max-lora-rank 1",
    ),
    ("_lora_chunked", "0.6.4", "M --enable-lora --enable-chunked-prefill", "", "M --enable-lora"),
    ("_block_not_offered", "0.6.3", "M --block-size 64", "", "M --block-size 32"),
    (
        "_block_of_backend",
        "0.20.0",
        "M --attention-backend FLASHMLA --block-size 16",
        "",
        "M --attention-backend FLASHMLA --block-size 64",
    ),
    (
        "_prefixes_in_fp8",
        "0.5.0",
        "M --enable-prefix-caching --kv-cache-dtype fp8",
        "",
        "M --kv-cache-dtype fp8",
    ),
    ("_no_pipeline", "0.5.0", "M --pipeline-parallel-size 2", "", "M --tensor-parallel-size 2"),
    ("_more_ranks_than_cards", "0.32.0", "M -tp 4 -pp 2", "4 x H100", "M -tp 4"),
    (
        "_experts_balanced_alone",
        "0.32.0",
        "M -tp 2 --enable-eplb",
        "",
        "M -tp 2 --enable-eplb --enable-expert-parallel",
    ),
    (
        "_local_above_all",
        "0.32.0",
        "M --data-parallel-size-local 4 -dp 2",
        "",
        "M --data-parallel-size-local 2 -dp 4",
    ),
    (
        "_balancer_for_one",
        "0.12.0",
        "M --data-parallel-external-lb",
        "",
        "M --data-parallel-external-lb -dp 2",
    ),
    (
        "_two_balancers",
        "0.32.0",
        "M -dp 2 --data-parallel-external-lb --data-parallel-hybrid-lb",
        "",
        "M -dp 2 --data-parallel-hybrid-lb",
    ),
    (
        "_context_not_dividing",
        "0.32.0",
        "M -tp 4 --decode-context-parallel-size 3",
        "",
        "M -tp 4 --decode-context-parallel-size 2",
    ),
    (
        "_nodes_over_ray",
        "0.32.0",
        "M --nnodes 2 --distributed-executor-backend ray",
        "",
        "M --nnodes 2 --distributed-executor-backend mp",
    ),
    (
        "_nsight_without_ray",
        "0.12.0",
        "M --ray-workers-use-nsight",
        "",
        "M --ray-workers-use-nsight --distributed-executor-backend ray",
    ),
    (
        "_tools_without_parser",
        "0.32.0",
        "M --enable-auto-tool-choice",
        "",
        "M --enable-auto-tool-choice --tool-call-parser hermes",
    ),
    (
        "_reasoning_without_parser",
        "0.8.0",
        "M --enable-reasoning",
        "",
        "M --enable-reasoning --reasoning-parser deepseek_r1",
    ),
    (
        "_outputs_without_requests",
        "0.12.0",
        "M --enable-log-outputs",
        "",
        "M --enable-log-outputs --enable-log-requests",
    ),
    (
        "_connector_without_role",
        "0.32.0",
        """M --kv-transfer-config '{"kv_connector": "NixlConnector"}'""",
        "",
        """M --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
    ),
    (
        "_drafts_chunked",
        "0.6.3",
        "M --speculative-model S --num-speculative-tokens 3 --enable-chunked-prefill",
        "",
        "M --speculative-model S --num-speculative-tokens 3",
    ),
    (
        "_drafts_in_old_blocks",
        "0.5.0",
        "M --speculative-model S --num-speculative-tokens 3",
        "",
        "M --speculative-model S --num-speculative-tokens 3 --use-v2-block-manager",
    ),
    (
        "_tokens_without_drafter",
        "0.8.0",
        "M --num-speculative-tokens 3",
        "",
        "M --num-speculative-tokens 3 --speculative-model S",
    ),
    (
        "_drafter_without_tokens",
        "0.32.0",
        """M --speculative-config '{"method": "ngram"}'""",
        "",
        """M --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""",
    ),
    (
        "_drafter_split_otherwise",
        "0.8.0",
        "M -tp 4 --speculative-model S --num-speculative-tokens 3 --speculative-draft-tensor-parallel-size 2",
        "",
        "M -tp 4 --speculative-model S --num-speculative-tokens 3 --speculative-draft-tensor-parallel-size 1",
    ),
    (
        "_wrong_name_of_split",
        "0.32.0",
        """M --speculative-config '{"model": "S", "num_speculative_tokens": 3, "tensor_parallel_size": 1}'""",
        "",
        """M --speculative-config '{"model": "S", "num_speculative_tokens": 3}'""",
    ),
    (
        "_drafts_beyond_the_step",
        "0.32.0",
        f"M --enable-lora --max-num-seqs 512 --max-num-batched-tokens 2000 {EAGLE}",
        "",
        f"M --enable-lora --max-num-seqs 512 --max-num-batched-tokens 2048 {EAGLE}",
    ),
    (
        "_several_steps_with_drafts",
        "0.8.0",
        "M --num-scheduler-steps 8 --speculative-model S",
        "",
        "M --num-scheduler-steps 8",
    ),
    (
        "_several_steps_chunked",
        "0.7.0",
        "M --num-scheduler-steps 8 --enable-chunked-prefill -pp 2",
        "",
        "M --num-scheduler-steps 8 --enable-chunked-prefill",
    ),
    ("_ahead_in_stages", "0.14.1", "M --async-scheduling -pp 2", "", "M --async-scheduling -tp 2"),
    (
        "_ahead_with_drafts",
        "0.32.0",
        """M --async-scheduling --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""",
        "",
        """M --async-scheduling --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
    ),
    (
        "_ahead_over_ray",
        "0.12.0",
        "M --async-scheduling --distributed-executor-backend ray",
        "",
        "M --distributed-executor-backend ray",
    ),
    ("_heads_not_divided", "0.32.0", f"{LLAMA} -tp 6", "", f"{LLAMA} -tp 4"),
    ("_heads_not_divided", "0.32.0", "Qwen/Qwen2.5-7B-Instruct -tp 8", "", "Qwen/Qwen2.5-7B-Instruct -tp 4"),
    (
        "_longer_than_model",
        "0.32.0",
        "meta-llama/Llama-2-7b-hf --max-model-len 8192",
        "",
        """meta-llama/Llama-2-7b-hf --max-model-len 8192 --hf-overrides '{"rope_scaling": {}}'""",
    ),
    (
        "_prefixes_with_window",
        "0.6.0",
        f"{MISTRAL} --enable-prefix-caching",
        "",
        f"{MISTRAL} --enable-prefix-caching --disable-sliding-window",
    ),
    ("_bf16_on_old_card", "0.32.0", "M --dtype bfloat16", "1 x T4", "M --dtype half"),
    ("_method_needs_card", "0.13.0", "M --quantization fp8", "1 x T4", "M --dtype half"),
    (
        "_half_only",
        "0.12.0",
        "M --quantization awq --dtype bfloat16",
        "",
        "M --quantization awq --dtype half",
    ),
    (
        "_another_checkpoint",
        "0.32.0",
        "org/Qwen3-8B-GPTQ-Int4 --quantization fp8",
        "",
        "org/Qwen3-8B-GPTQ-Int4 --quantization gptq_marlin",
    ),
    ("_plain_checkpoint", "0.12.0", f"{LLAMA} --quantization awq", "", f"{LLAMA} --quantization fp8"),
    ("_cache_of_newer_cards", "0.32.0", "M --kv-cache-dtype nvfp4", "1 x H100", "M --kv-cache-dtype fp8"),
    (
        "_flash_attention_too_new",
        "0.13.0",
        "M --attention-backend FLASH_ATTN --kv-cache-dtype fp8",
        "1 x A100",
        "M --attention-backend FLASH_ATTN",
    ),
    ("_dense_behind_balancer", "0.32.0", f"{LLAMA} -dp 2 --data-parallel-external-lb", "", f"{LLAMA} -dp 2"),
]


def of(version: str, flags: str, cards: str) -> Evidence:
    """Of an image's command line, on "4 x H100"."""
    found = read_command(f"docker run vllm/vllm-openai:v{version} --model {flags}", "command")
    if not cards:
        return found
    count, _, name = cards.partition(" x ")
    told = {"hardware:gpu": (name,), "hardware:gpu_count": (float(count),)}
    return found | Evidence(readings={key: Reading(key, value, "told") for key, value in told.items()})


@pytest.mark.parametrize(("check", "version", "flags", "cards", "right"), REFUSED)
def test_what_is_refused_together_is_said_and_what_is_taken_is_not(
    check: str, version: str, flags: str, cards: str, right: str
) -> None:
    function, since, until = next(entry for entry in CHECKS if entry[0].__name__ == check)
    wrong = contradictions(of(version, flags, cards))
    found = findings(of(version, flags, cards))[0]

    assert len(wrong) == 1, [each.claim for each in wrong]
    assert (found.label, found.severity) == (Label.BAD_FLAGS, Severity.CRITICAL)
    assert not contradictions(of(version, right, cards)), right
    assert function.__name__ == check
    earlier = f"{since[0]}.{since[1] - 1}.0" if since > (0, 4) else ""
    for other in (earlier, ".".join(map(str, (*until, 0)[:3])) if until else ""):
        claims = {each.claim for each in contradictions(of(other, flags, cards))} if other else set[str]()
        assert wrong[0].claim not in claims, other


def test_every_check_is_tried() -> None:
    assert {check.__name__ for check, _, _ in CHECKS} - {"_adapter_above_rank"} == {row[0] for row in REFUSED}


def test_an_adapter_above_the_rank_is_told_with_the_rank_that_fits() -> None:
    flags = {"enable-lora": True, "max-lora-rank": 16}
    wide = incident(engine="vllm", version="0.12.0", flags=flags, workload={"lora_rank": 48})
    narrow = incident(engine="vllm", version="0.12.0", flags=flags, workload={"lora_rank": 16})

    assert "--max-lora-rank 64" in findings(wide)[0].advice.change
    assert Label.BAD_FLAGS not in labels(narrow)


def test_a_server_at_work_took_its_settings() -> None:
    flags = {"async-scheduling": True, "pipeline-parallel-size": 2}
    metrics = {"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0}

    assert contradictions(incident(engine="vllm", version="0.12.0", flags=flags))
    assert not contradictions(incident(engine="vllm", version="0.12.0", flags=flags, metrics=metrics))


def test_what_somebody_did_not_write_down_is_not_taken_for_missing() -> None:
    """An incident lists some flags; a command line has all."""
    some = {"enable-auto-tool-choice": True}

    assert not contradictions(
        incident(engine="vllm", flags=some, log=["INFO: Application startup complete."])
    )
    assert contradictions(incident(engine="vllm", flags=some))
    assert contradictions(of("0.32.0", "M --enable-auto-tool-choice", ""))


def test_the_log_of_a_refused_start_is_told_with_its_numbers(tmp_path: Path) -> None:
    lines = (
        "INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.6.3",
        "INFO [api_server.py:1] non-default args: {'max_num_batched_tokens': 2048, 'max_model_len': 8192}",
        "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (8192).",
    )

    found = [f for f in findings(of_log(tmp_path, *lines)) if f.label is Label.BAD_FLAGS]

    assert "2048 < --max-model-len 8192" in found[0].claim
    assert any("smaller than" in fact.text for fact in found[0].facts)
    assert not any("contradict" in each.claim for each in found)


def test_settings_of_graphs_beside_eager_mode_have_no_effect() -> None:
    given = "M --enforce-eager --cudagraph-capture-sizes 1 2 4"

    assert "has no effect beside it" in findings(of("0.32.0", given, ""))[0].claim
    assert first(of("0.32.0", "M --cudagraph-capture-sizes 1 2 4", "")) is Label.UNDETERMINED
