"""Settings of drafts, of several steps at once and of scheduling ahead that vLLM refuses, by version."""

from headrace.diagnose.flag_history import Release
from headrace.diagnose.refusals import Check, Refusal
from headrace.diagnose.settings_of import Settings

_SPECULATIVE = "speculative-config"
_AHEAD: tuple[tuple[Release, str], ...] = (
    ((0, 10), ""),
    ((0, 11, 1), "eagle mtp"),
    ((0, 16), "eagle mtp draft_model"),
    ((0, 18), "eagle mtp draft_model ngram_gpu dflash dspark extract_hidden_states"),
)
"""Parts of the names of methods that go with --async-scheduling, from a release on."""


def _drafts(s: Settings) -> bool:
    return s.has(_SPECULATIVE) or s.has("speculative-model") or s.has("spec-method")


def _method(s: Settings) -> str:
    given = s.part(_SPECULATIVE, "method")
    return str(given or s.text("spec-method")).strip("[]").lower()


def _tokens(s: Settings) -> float | None:
    given = s.part(_SPECULATIVE, "num_speculative_tokens")
    told = given if isinstance(given, float) else None
    return told or s.given("num-speculative-tokens") or s.given("spec-tokens")


def _drafts_chunked(s: Settings) -> Refusal | None:
    if not s.has("speculative-model") or not s.is_on("enable-chunked-prefill"):
        return None
    return Refusal(
        "--speculative-model and --enable-chunked-prefill exclude each other in this version",
        ("speculative-model", "enable-chunked-prefill"),
        "leave --enable-chunked-prefill out, or vLLM 0.6.4 or newer",
    )


def _drafts_in_old_blocks(s: Settings) -> Refusal | None:
    if not s.has("speculative-model") or s.is_on("use-v2-block-manager"):
        return None
    return Refusal(
        "--speculative-model without --use-v2-block-manager",
        ("speculative-model",),
        "--use-v2-block-manager beside it",
        is_of_absence=True,
    )


def _tokens_without_drafter(s: Settings) -> Refusal | None:
    named = s.has("speculative-model") or s.has(_SPECULATIVE) or s.has("spec-model") or s.has("spec-method")
    flag = next((name for name in ("num-speculative-tokens", "spec-tokens") if s.has(name)), None)
    if flag is None or named:
        return None
    return Refusal(
        f"--{flag} without anything that drafts",
        (flag,),
        "--speculative-model beside it"
        if s.release < (0, 8, 3)
        else "--speculative-config {…} with its method",
        is_of_absence=True,
    )


def _drafter_without_tokens(s: Settings) -> Refusal | None:
    """A checkpoint of MTP or EAGLE may say how many itself; n-grams and separate models do not."""
    if _method(s) not in {"ngram", "draft_model"} or _tokens(s) is not None:
        return None
    return Refusal(
        f"--speculative-config with the method {_method(s)} and no num_speculative_tokens",
        (_SPECULATIVE,),
        '"num_speculative_tokens": 3 in it',
        is_of_absence=True,
    )


def _drafter_split_otherwise(s: Settings) -> Refusal | None:
    given = s.part(_SPECULATIVE, "draft_tensor_parallel_size")
    drafts = given if isinstance(given, float) else s.given("speculative-draft-tensor-parallel-size")
    target = s.number("tensor-parallel-size")
    if drafts is None or drafts in (1, target):
        return None
    return Refusal(
        f"The draft is split over {drafts:.0f} cards: only 1, or the target's {target:.0f}, will do",
        (_SPECULATIVE, "speculative-draft-tensor-parallel-size", "tensor-parallel-size"),
        f"a draft tensor parallel size of 1 or {target:.0f}",
    )


def _wrong_name_of_split(s: Settings) -> Refusal | None:
    if s.part(_SPECULATIVE, "tensor_parallel_size") is None:
        return None
    return Refusal(
        "--speculative-config takes no tensor_parallel_size",
        (_SPECULATIVE,),
        '"draft_tensor_parallel_size" in its place',
    )


def _drafts_beyond_the_step(s: Settings) -> Refusal | None:
    """With LoRA each running request must have room for its token and all drafts in one step."""
    tokens, slots, drafts = s.given("max-num-batched-tokens"), s.given("max-num-seqs"), _tokens(s)
    if not tokens or not slots or not drafts or not s.is_on("enable-lora") or tokens >= slots * (drafts + 1):
        return None
    return Refusal(
        f"{slots:.0f} requests with {drafts:.0f} drafts each need {slots * (drafts + 1):.0f} tokens a step; "
        f"--max-num-batched-tokens is {tokens:.0f}",
        ("max-num-batched-tokens", "max-num-seqs", _SPECULATIVE),
        f"--max-num-batched-tokens {slots * (drafts + 1):.0f} or more",
    )


def _several_steps_with_drafts(s: Settings) -> Refusal | None:
    steps = s.given("num-scheduler-steps") or 1
    if steps <= 1 or not _drafts(s):
        return None
    return Refusal(
        f"--num-scheduler-steps {steps:.0f} and speculative decoding exclude each other",
        ("num-scheduler-steps", "speculative-model", _SPECULATIVE),
        "one of the two",
    )


def _several_steps_chunked(s: Settings) -> Refusal | None:
    steps, stages = s.given("num-scheduler-steps") or 1, s.number("pipeline-parallel-size")
    if steps <= 1 or stages <= 1 or not s.is_on("enable-chunked-prefill"):
        return None
    return Refusal(
        f"--num-scheduler-steps {steps:.0f} with chunked prefill does not go with "
        f"--pipeline-parallel-size {stages:.0f}",
        ("num-scheduler-steps", "enable-chunked-prefill", "pipeline-parallel-size"),
        "leave --num-scheduler-steps out",
    )


def _ahead_in_stages(s: Settings) -> Refusal | None:
    stages = s.number("pipeline-parallel-size")
    if not s.is_on("async-scheduling") or stages <= 1:
        return None
    return Refusal(
        f"--async-scheduling does not go with --pipeline-parallel-size {stages:.0f} in this version",
        ("async-scheduling", "pipeline-parallel-size"),
        "leave --async-scheduling out, or vLLM 0.15.0 or newer",
    )


def _ahead_with_drafts(s: Settings) -> Refusal | None:
    kinds = [kinds for since, kinds in _AHEAD if since <= s.release][-1].split()
    method = _method(s)
    if not s.is_on("async-scheduling") or not _drafts(s) or (kinds and not method):
        return None
    if any(kind in method for kind in kinds):
        return None
    return Refusal(
        "--async-scheduling does not go with " + (f"drafts by {method}" if kinds else "speculative decoding"),
        ("async-scheduling", _SPECULATIVE, "spec-method"),
        "leave --async-scheduling out",
    )


def _ahead_over_ray(s: Settings) -> Refusal | None:
    if not s.is_on("async-scheduling") or s.text("distributed-executor-backend") != "ray":
        return None
    return Refusal(
        "--async-scheduling does not go with --distributed-executor-backend ray in this version",
        ("async-scheduling", "distributed-executor-backend"),
        "--distributed-executor-backend mp, or leave --async-scheduling out",
    )


CHECKS: tuple[tuple[Check, Release, Release | None], ...] = (
    (_drafts_chunked, (0, 4), (0, 6, 4)),
    (_drafts_in_old_blocks, (0, 4), (0, 6, 3)),
    (_tokens_without_drafter, (0, 5, 1), None),
    (_drafter_without_tokens, (0, 8, 3), None),
    (_drafter_split_otherwise, (0, 5, 5), None),
    (_wrong_name_of_split, (0, 15), None),
    (_drafts_beyond_the_step, (0, 11, 1), None),
    (_several_steps_with_drafts, (0, 5, 5), (0, 10, 1)),
    (_several_steps_chunked, (0, 6, 3), (0, 10, 1)),
    (_ahead_in_stages, (0, 10), (0, 15)),
    (_ahead_with_drafts, (0, 10), None),
    (_ahead_over_ray, (0, 11, 1), (0, 19)),
)
