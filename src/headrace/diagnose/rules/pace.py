"""What a queue for the tokens of a step costs, and what each remedy would change: advice with its arithmetic.

Evidence -> pace_of -> Pace(tokens a second, tokens of a step, tokens of a prompt, waiting) -> advice
"""

import math
from dataclasses import dataclass

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice
from headrace.diagnose.flag_facts import flag_facts
from headrace.diagnose.load import increase, load_of, mean_of
from headrace.diagnose.rules.support import prompt_tokens

ENOUGH_TOKENS = 512
"""Of a step. In the twin of an 8B model on an H100 steps of 256, 512, 2,048 and 8,192 tokens read 35,600,
38,900, 41,500 and 42,200 a second: below it weights are read for too few, above it little is gained."""
LARGER = 2048
SPARE = 0.8
"""Of what a server can read: above it the queue grows with each burst."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`per_s` prompt tokens read a second while others waited; `step` the token budget; `prompt` the mean
    length; `grows_per_s` prompts by which the queue grew. None: not known.
    """

    per_s: float
    step: float | None
    prompt: float | None
    waiting: float
    grows_per_s: float | None


def pace_of(e: Evidence) -> Pace:
    load, window = load_of(e), e.number("server:window_s")
    read = increase(e, "headrace:prefill_tokens_total", "vllm:prompt_tokens_total")
    per_s = max(load.prompted, default=0.0) or (read / window if read and window else 0.0)
    step = e.flag("max-num-batched-tokens") or e.number("startup:max_num_batched_tokens")
    told = prompt_tokens(e)
    grown = load.waiting[-1] - load.waiting[0] if len(load.waiting) > 1 and window else None
    return Pace(
        per_s,
        step,
        mean_of(e, "vllm:request_prompt_tokens") or (sum(told) / len(told) if told else None),
        load.peak_waiting,
        grown / window if grown is not None and window else None,
    )


def advice(e: Evidence, *, level: bool) -> Advice:
    """For prompts that wait for tokens of a step. `level`: they are read as fast as the card can."""
    pace = pace_of(e)
    small = pace.step is not None and pace.step < ENOUGH_TOKENS
    return _larger_steps(pace) if small and not level else _more_servers(e, pace)


def _larger_steps(pace: Pace) -> Advice:
    """Steps so small that each pays the reading of all weights for few tokens."""
    step, prompt = pace.step or float(ENOUGH_TOKENS), pace.prompt
    steps = (
        f", a prompt of {prompt:,.0f} tokens takes {math.ceil(prompt / LARGER)} steps instead of "
        f"{math.ceil(prompt / step)}"
        if prompt
        else ""
    )
    now = f" (about {step / pace.per_s:.2g} s now)" if pace.per_s else ""
    return Advice(
        f"--max-num-batched-tokens from {step:.0f} to {LARGER}, --long-prefill-token-threshold {LARGER // 4} "
        "so that short prompts pass",
        f"prompts are read up to a fifth faster{steps}; beyond {LARGER} nothing more is gained",
        f"while a prompt is read a running stream waits for the whole step for its token{now}: up to "
        f"{LARGER / step:.0f} times as long",
        "waiting falls at the same load, prompt tokens a second rise, ITL P99 stays within its goal",
    )


def _more_servers(e: Evidence, pace: Pace) -> Advice:
    """Reading is bound by arithmetic: no setting of the scheduler makes it faster, only fewer tokens do, or
    more cards.
    """
    needed, fair = _servers(pace), _fairness(e, pace)
    return Advice(
        f"{needed} replicas instead of 1, or prefix caching where prompts begin alike (each tenth of tokens "
        "that hits is a tenth less to read)"
        + (f"; until then {fair} lets short prompts pass" if fair else ""),
        f"{_with_servers(pace, needed)}; a larger --max-num-batched-tokens would not read faster, only more "
        "prompts side by side",
        "cards; with a threshold long prompts take more steps and their first token comes later",
        (f"prompt tokens a second of each server below {SPARE * pace.per_s:,.0f}, " if pace.per_s else "")
        + "waiting back at 0 between bursts",
    )


def _servers(pace: Pace) -> int:
    if pace.grows_per_s is None or not pace.prompt or not pace.per_s:
        return 2
    return max(2, math.ceil((pace.per_s + pace.grows_per_s * pace.prompt) / (SPARE * pace.per_s)))


def _with_servers(pace: Pace, needed: int) -> str:
    if not pace.per_s:
        return f"{needed} replicas read {needed} times as fast"
    if not pace.prompt or not pace.waiting:
        return f"each reads {pace.per_s:,.0f} prompt tokens a second"
    backlog_s = pace.waiting * pace.prompt / pace.per_s
    return (
        f"the {pace.waiting:,.0f} that wait are {backlog_s:,.1f} s of reading for one server, "
        f"{backlog_s / needed:,.1f} s for {needed}"
    )


def _fairness(e: Evidence, pace: Pace) -> str:
    if e.engine == "headrace":
        return "--scheduling-policy shortest"
    known = flag_facts().has("long-prefill-token-threshold", e.release)
    if not known or e.flag("long-prefill-token-threshold"):
        return ""
    return f"--long-prefill-token-threshold {int(max(256, (pace.step or LARGER) // 4))} (0 now)"
