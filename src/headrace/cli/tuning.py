"""One tuning of the embedded engine: servers, traffic, measurements and the search put together.

    Plan -> tune_embedded -> Tuned
      first server: probe -> rates, duration -> timetable
      search <- judge(overrides): start a server, warm it up, send the timetable, stop it

Whatever ends it (the budget, Ctrl-C, a failure), the server that is running is stopped.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from headrace.cli.measuring import Target, measure
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.exchange import Answer, Ask, Broken
from headrace.core.measurement import ALL, Measurement
from headrace.core.ports import Overrides
from headrace.core.settings import Settings
from headrace.core.trial import NoResult, Outcome, Trial
from headrace.measure import record
from headrace.measure.run import Event
from headrace.measure.summary import summarise
from headrace.net.client import HttpSender, served_models
from headrace.report.progress import Progress
from headrace.report.tune import settings_words
from headrace.report.tuned import Tuned, p95_ttft_s
from headrace.report.units import seconds
from headrace.targets.embedded import EmbeddedServer
from headrace.tune.candidates import Start
from headrace.tune.search import WORTHWHILE_RUNS, Budget, conclude, search
from headrace.tune.traffic import Probe, document_length, fit, keeps_up, lighter, plan_runs, typical
from headrace.workload.mixed import LONG, SHORT, MixedWorkload

TIMEOUT_S = 60.0
"""Of one request. Longer than any answer takes below the knee, short enough not to eat the budget."""
DRAIN_S = 4.0
"""What the last answers of a run take, roughly."""
PROBE_SEED = 1_000_003
"""Far from the timetables' seeds: no prompt of theirs may be known to a prefix cache."""
PROBE_TOKENS = 1000
WARM_UP_TOKENS = 300
NUM_PROBE_SHORT = 8
ANSWER_TOKENS = (12, 24)
"""Brief: a run shall hold enough requests for a P95 of the first token."""
MOST_LIGHTER_LOADS = 2
FEWEST_RUNS = 4
"""With fewer there is nothing to tell from noise: the start twice, and a candidate twice."""
LEAST_MODEL_LEN = 2200
"""A context in which the probe, the shortest documents and their answers have room."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    model: str
    max_model_len: int
    ends_at: float
    """On `time.monotonic`."""
    max_trials: int | None = None
    short_rps: float | None = None
    """None: fitted to the machine."""
    long_rps: float | None = None
    seed: int = 0
    workload: MixedWorkload | None = None
    """None: fitted to the machine and the budget."""
    output_dir: Path | None = None
    program: Sequence[str] = (sys.executable, "-m", "headrace")


class Overloaded(Exception):
    """The starting settings fell behind the load: above the knee, all settings are alike in queueing."""

    def __init__(self, took_s: float) -> None:
        super().__init__(took_s)
        self.took_s = took_s


def tune_embedded(plan: Plan, console: Console) -> tuple[Tuned, bool]:
    """Search, and say whether it was interrupted; then the outcome is of the trials until then."""
    if plan.max_model_len < LEAST_MODEL_LEN:
        raise BadInput(
            f"the model's context of {plan.max_model_len} tokens has no room for documents beside chats",
            f"tune with a model of at least {LEAST_MODEL_LEN} tokens",
        )
    start = starting_levers(plan.max_model_len)
    teller = Teller(console, plan.ends_at)
    interrupted = False
    try:
        outcome = _search(plan, start, teller)
    except KeyboardInterrupt:
        teller.say("interrupted; this is what was learned until now")
        outcome, interrupted = conclude(teller.trials, SHORT), True
    return Tuned(outcome, start.levers(), plan.model, SHORT), interrupted


def _search(plan: Plan, start: Start, teller: "Teller") -> Outcome:
    """Search under a load that the start can carry: as the probe suggests, or less if it falls behind."""
    workload, around_s = (plan.workload, 0.0) if plan.workload else fitted_workload(plan, teller)
    budget = Budget(plan.ends_at, plan.max_trials)
    is_fixed = plan.workload is not None or plan.short_rps is not None or plan.long_rps is not None
    for lighter_loads in range(MOST_LIGHTER_LOADS, -1, -1):
        judge = EmbeddedJudge(plan, workload, start.levers(), teller.console)
        # A lighter load costs one more run of the start, and after it there must be time to compare.
        runs_left = (plan.ends_at - time.monotonic()) / (workload.duration_s + around_s)
        judge.tolerates_overload = is_fixed or lighter_loads == 0 or runs_left < FEWEST_RUNS + 1
        try:
            return search(judge, start, budget, time.monotonic, teller, target_class=SHORT)
        except Overloaded as overloaded:
            workload = _timed(plan, lighter(workload, overloaded.took_s), around_s)
            teller.say(
                f"  the start took {seconds(overloaded.took_s)} to answer: too much load to learn from; "
                f"now {workload.describe()}"
            )
    raise AssertionError("the last load is always tolerated")


def starting_levers(max_model_len: int) -> Start:
    """The embedded engine's defaults, which are vLLM's."""
    defaults = Settings(max_model_len=max_model_len, num_gpu_blocks=2)
    return Start(
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_num_seqs=defaults.max_num_seqs,
        long_prefill_token_threshold=defaults.long_prefill_token_threshold,
        max_model_len=max_model_len,
    )


# --- traffic -----------------------------------------------------------------------------------


def fitted_workload(plan: Plan, teller: "Teller") -> tuple[MixedWorkload, float]:
    """A load that fits this machine, and what a run takes beside sending it, in seconds."""
    began = time.monotonic()
    teller.say(f"starting {plan.model} to see how fast this machine is")
    with EmbeddedServer(plan.model, {}, program=plan.program) as server:
        target = _target(server)
        warm_up(target)
        around_s = time.monotonic() - began + DRAIN_S
        probe = look(target, plan.max_model_len * 3 // 5)
    rates = fit(probe)
    workload = MixedWorkload(
        short_rps=rates.short_rps if plan.short_rps is None else plan.short_rps,
        long_rps=rates.long_rps if plan.long_rps is None else plan.long_rps,
        short_output_tokens=ANSWER_TOKENS,
        long_prompt_tokens=(probe.document_tokens * 3 // 4, probe.document_tokens * 5 // 4),
        long_output_tokens=ANSWER_TOKENS,
        seed=plan.seed,
    )
    workload = _timed(plan, workload, around_s)
    teller.say(
        f"a document of {probe.document_tokens} tokens takes {seconds(probe.document_s)} here, a short "
        f"request {seconds(probe.short_each_s)}; so every run sends {workload.describe()}"
    )
    return workload, around_s


def _timed(plan: Plan, workload: MixedWorkload, around_s: float) -> MixedWorkload:
    """As long as the time left allows, under a seed that makes it typical."""
    numbers_of_runs = [min(runs, plan.max_trials or runs) for runs in WORTHWHILE_RUNS]
    left_s = plan.ends_at - time.monotonic()
    duration_s = plan_runs(left_s, around_s, numbers_of_runs, workload.short_rps)
    return typical(replace(workload, duration_s=duration_s, seed=plan.seed))


def warm_up(target: Target) -> None:
    """Let the server meet each kind of request once, as the first of a kind is slow."""
    ask_together(target, [*_asks(SHORT, 2, PROBE_SEED + 1), *_asks(LONG, 1, PROBE_SEED + 1, WARM_UP_TOKENS)])


def look(target: Target, most_document_tokens: int) -> Probe:
    """Time a document of the length that suits this machine, and short requests. All counted in words,
    as workloads do: a tokenizer that makes more tokens of them makes them slower, too.
    """
    tokens = document_length(PROBE_TOKENS, _first_token_s(target, PROBE_TOKENS), most_document_tokens)
    document_s = _first_token_s(target, tokens)
    short = ask_together(target, _asks(SHORT, NUM_PROBE_SHORT, PROBE_SEED))
    together_s = max(each.token_at[-1] for each in short) - min(each.sent_at for each in short)
    return Probe(tokens, document_s, together_s / len(short))


def _first_token_s(target: Target, document_tokens: int) -> float:
    # The seed differs with the length, so that one document does not begin as another.
    asks = _asks(LONG, 1, PROBE_SEED + document_tokens, document_tokens)
    (answer,) = ask_together(target, asks)
    return answer.token_at[0] - answer.sent_at


def _target(server: EmbeddedServer, settings: Overrides | None = None) -> Target:
    return Target(server.url, asyncio.run(served_models(server.url))[0], server.command, settings)


def ask_together(target: Target, asks: Sequence[Ask]) -> list[Answer]:
    """All answers, or `TargetFailed` with the reason of the first that did not come."""
    answers = asyncio.run(_ask_together(target, asks))
    for answer in answers:
        if not isinstance(answer, Answer):
            raise TargetFailed(f"the server does not answer while nothing else is sent: {answer.reason}")
    return [answer for answer in answers if isinstance(answer, Answer)]


async def _ask_together(target: Target, asks: Sequence[Ask]) -> list[Answer | Broken]:
    async with HttpSender(target.url, target.model, clock=time.monotonic, timeout_s=TIMEOUT_S) as sender:
        return await asyncio.gather(*(sender.send(ask) for ask in asks))


def _asks(name: str, count: int, seed: int, long_tokens: int = 2) -> list[Ask]:
    """The first requests of a class of some timetable, which is none that is measured."""
    workload = MixedWorkload(
        short_rps=count if name == SHORT else 0.0,
        long_rps=count if name == LONG else 0.0,
        long_prompt_tokens=(long_tokens, long_tokens),
        short_output_tokens=ANSWER_TOKENS,
        long_output_tokens=ANSWER_TOKENS,
        duration_s=60.0,
        seed=seed,
    )
    return [arrival.ask for arrival in workload.arrivals()[:count]]


# --- judging -----------------------------------------------------------------------------------


class EmbeddedJudge:
    """Measures one choice of settings on a server of its own.

    Raises `Overloaded` when its first run falls behind the load, unless told to tolerate that.
    """

    def __init__(self, plan: Plan, workload: MixedWorkload, start: Overrides, console: Console) -> None:
        self._plan = plan
        self._workload = workload
        self._start = start
        self._console = console
        self.tolerates_overload = False
        self._runs = 0

    def __call__(self, overrides: Overrides) -> Measurement:
        plan = self._plan
        self._runs += 1
        with EmbeddedServer(plan.model, overrides, program=plan.program) as server:
            target = _target(server, self._start | overrides)
            warm_up(target)
            measurement = self._measure(target, server)
        is_first = self._runs == 1 and not self.tolerates_overload
        if is_first and not keeps_up(self._workload, measurement.duration_s):
            raise Overloaded(measurement.duration_s)
        if plan.output_dir is not None:
            record.write(measurement, plan.output_dir / f"run-{self._runs:02}.jsonl")
        return measurement

    def _measure(self, target: Target, server: EmbeddedServer) -> Measurement:
        num_requests = len(self._workload.arrivals())
        with Progress(self._console, num_requests) as progress:
            watched = _while_alive(server, progress.on_event if self._console.is_terminal else None)
            measurement = measure(target, self._workload, timeout_s=TIMEOUT_S, on_event=watched)
        server.check_alive()
        return measurement


def _while_alive(server: EmbeddedServer, tell: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """Ends a run whose server is gone, instead of sending it the rest of the timetable."""

    def on_event(event: Event) -> None:
        server.check_alive()
        if tell is not None:
            tell(event)

    return on_event


@dataclass(slots=True)
class Teller:
    """Tells a person what is being tried, and keeps the trials should the search be cut short."""

    console: Console
    ends_at: float
    began: float = field(default_factory=time.monotonic)
    trials: list[Trial] = field(default_factory=list[Trial])

    def say(self, what: str) -> None:
        self.console.print(
            f"{_clock(time.monotonic() - self.began)}  {what}", highlight=False, soft_wrap=True
        )

    def starting(self, overrides: Overrides, number: int, of: int | None) -> None:
        left = _clock(self.ends_at - time.monotonic())
        which = f"run {number}" if of is None else f"run {number} of {of}"
        self.say(f"{which}, {left} left: {settings_words(overrides)}")

    def ended(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.say(f"  {_in_brief(trial)}")


def _in_brief(trial: Trial) -> str:
    if isinstance(trial.result, NoResult):
        return f"no result: {trial.result.cause}"
    classes = summarise(trial.result)
    parts = [
        f"{name} P95 TTFT {seconds(p95)}" for name in (SHORT, LONG) if (p95 := p95_ttft_s(classes, name))
    ]
    parts.append(f"{classes[ALL].throughput_rps:.2f} req/s")
    if classes[ALL].failed:
        parts.append(f"{classes[ALL].failed} failed")
    return ", ".join(parts)


def _clock(amount_s: float) -> str:
    minutes, rest = divmod(int(max(0.0, amount_s)), 60)
    return f"{minutes}:{rest:02}"
