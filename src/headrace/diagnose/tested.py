"""Advice that was tried in the twin before it is given.

    finding -> levers_of -> settings to try -> (somebody simulates them) -> with_trials -> advice with figures

What to try follows from the budget that a finding names. What comes of it is weighed here: a lever that
helps is named with its value, and one that does not is not advised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.bill import Cause
from headrace.diagnose.doctor import Diagnosis
from headrace.diagnose.finding import Fact, Finding, Label

Value = int | bool | str
NOTHING_HELPS = (
    "no setting that was tried helps in the twin: another replica, shorter prompts or answers, a faster card"
)
HELPS = 0.9
"""Of the P95 of TTFT: what takes more than so much of it away is worth a change."""
MOST_ITL = 1.5
"""Times the time between tokens that a shorter TTFT may cost before it is said to be a bad trade."""
TRUSTED = 2.0
"""A twin whose TTFT is further off than so many times does not stand for this server."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation came to: of the same requests, so that runs can be set against each other."""

    ttft_p95_s: float
    itl_mean_s: float
    output_tokens_per_s: float
    preemptions: int
    overloaded: bool
    """The queue grew without bound: with more requests the latencies would be longer still."""

    def told(self) -> str:
        end = ", overloaded" if self.overloaded else ""
        return (
            f"TTFT P95 {self.ttft_p95_s:.2f} s, ITL {1000 * self.itl_mean_s:.0f} ms, "
            f"{self.output_tokens_per_s:,.0f} tokens/s{end}"
        )


@dataclass(frozen=True, slots=True)
class Lever:
    """A change of settings under vLLM's names, and how a person makes it."""

    change: Mapping[str, Value]
    words: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A lever, and what the twin made of it; None where it could not be tried."""

    lever: Lever
    run: Run | None


@dataclass(frozen=True, slots=True)
class Twin:
    """The twin under the server's own settings."""

    run: Run
    bill: Mapping[str, float]
    """Shares of the TTFT by cause."""
    measured_ttft_s: float | None
    predicted_ttft_s: float | None
    """Means, of the server and of the twin."""
    stretched: float = 1.0
    """Times by which its steps were made longer, for the time between tokens to be the measured one."""

    @property
    def is_trusted(self) -> bool:
        """Whether both have the same TTFT within `TRUSTED`; an overload has none to compare."""
        if not self.measured_ttft_s or not self.predicted_ttft_s:
            return self.measured_ttft_s is None
        off = self.predicted_ttft_s / self.measured_ttft_s
        return 1 / TRUSTED <= off <= TRUSTED


def levers_by_place(
    findings: Sequence[Finding], settings: Mapping[str, Value], bill: Mapping[str, float]
) -> dict[int, list[Lever]]:
    """Findings with one label are tried with the levers of all of them, so that none says that nothing helps
    where another knows what does.
    """
    of_label = dict[str, dict[str, Lever]]()
    for finding in findings:
        for lever in levers_of(finding, settings, bill):
            of_label.setdefault(finding.label, {})[lever.words] = lever
    return {place: list(of_label.get(finding.label, {}).values()) for place, finding in enumerate(findings)}


def levers_of(finding: Finding, settings: Mapping[str, Value], bill: Mapping[str, float]) -> list[Lever]:
    """Settings that change the budget which `finding` names; of those for a queue, the one that the bill
    names. `settings`: what holds now.
    """
    now = {name: int(value) for name, value in settings.items() if isinstance(value, int)}
    seqs, budget = now.get("max_num_seqs", 256), now.get("max_num_batched_tokens", 2048)
    if {finding.label, *finding.also} & {Label.THRASH, Label.KV_CAPACITY}:
        return [*_more_kv(now), *(_lever(max_num_seqs=max(1, seqs * part // 4)) for part in (3, 2, 1))]
    if finding.label not in {Label.QUEUEING, Label.COMPUTE}:
        return []
    queued = {cause: share for cause, share in bill.items() if cause in _BUDGETS and share > 0}
    largest = max(queued, key=lambda cause: queued[cause], default="")
    if largest == Cause.SLOTS or finding.rule in {"no_slot", "queue_before_the_first_token"}:
        return [_slots(n * seqs, budget) for n in (2, 4)]
    if largest == Cause.KV:
        return _more_kv(now)
    caps = (cap for cap in (budget // 2, budget // 4, budget // 8) if cap >= LEAST_CAP)
    wider = (n * budget for n in (2, 4) if n * budget <= MOST_BUDGET)
    return [
        *(_lever(long_prefill_token_threshold=cap) for cap in caps),
        *(_lever(max_num_batched_tokens=tokens) for tokens in wider),
    ]


_BUDGETS = {
    Cause.SLOTS,
    Cause.KV,
    Cause.TOKENS,
    Cause.DECODE_PACE,
    Cause.SHARED_STEPS,
    Cause.LONG_PREFILL_CAP,
}
"""What a request waits for that a setting can give; its own prefill is none of it."""
LEAST_CAP, MOST_BUDGET = 64, 32_768
"""Tokens: below, a long prompt takes for ever; above, no card gains anything."""


def _slots(seqs: int, budget: int) -> Lever:
    """A step must have a token for each."""
    return (
        _lever(max_num_seqs=seqs)
        if seqs <= budget
        else _lever(max_num_seqs=seqs, max_num_batched_tokens=seqs)
    )


def _lever(**change: Value) -> Lever:
    return Lever(change, " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items()))


def _more_kv(now: Mapping[str, int]) -> list[Lever]:
    """Half the bytes a token are twice the blocks."""
    blocks = now.get("num_gpu_blocks_override", 0)
    words = "twice the KV (--kv-cache-dtype fp8, or memory of the card)"
    return [Lever({"num_gpu_blocks_override": 2 * blocks}, words)] if blocks else []


def with_trials(diagnosis: Diagnosis, twin: Twin, trials: Mapping[int, Sequence[Trial]]) -> Diagnosis:
    """`trials` by the place of the finding among `diagnosis.findings`."""
    if not twin.is_trusted:
        return diagnosis
    findings = tuple(
        _weighed(finding, twin, trials.get(place, ())) for place, finding in enumerate(diagnosis.findings)
    )
    return replace(diagnosis, findings=findings)


def _weighed(finding: Finding, twin: Twin, trials: Sequence[Trial]) -> Finding:
    ran = [(trial.lever.words, trial.run) for trial in trials if trial.run is not None]
    if not ran:
        return finding
    words, best = min(ran, key=lambda pair: (pair[1].ttft_p95_s, -pair[1].output_tokens_per_s))
    facts = (
        Fact(f"as it is: {twin.run.told()}", "twin"),
        *(Fact(f"{tried}: {run.told()}", "twin") for tried, run in ran),
    )
    change, effect = (
        (f"{words} (in the twin: {_from_to(twin.run, best)})", f"in the twin {best.told()}")
        if _is_better(twin.run, best)
        else (
            NOTHING_HELPS,
            f"tried: {', '.join(tried for tried, _ in ran)}",
        )
    )
    advice = replace(finding.advice, change=change, effect=effect)
    return replace(finding, advice=advice, facts=finding.facts + facts)


def _is_better(now: Run, then: Run) -> bool:
    """A clearly shorter P95 of TTFT that streams do not pay for, or that comes with more throughput."""
    shorter = then.ttft_p95_s < HELPS * now.ttft_p95_s
    cheap = then.itl_mean_s <= MOST_ITL * now.itl_mean_s
    return shorter and (cheap or then.output_tokens_per_s > now.output_tokens_per_s / HELPS)


def _from_to(now: Run, then: Run) -> str:
    return (
        f"TTFT P95 {now.ttft_p95_s:.2f} -> {then.ttft_p95_s:.2f} s, "
        f"ITL {1000 * now.itl_mean_s:.0f} -> {1000 * then.itl_mean_s:.0f} ms"
    )
