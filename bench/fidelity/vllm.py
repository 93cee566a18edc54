"""Real vLLM on this machine's CPU: calibrated from outside, predicted, and only then measured.

    start it with its defaults, calibrate -> cost.json
    predict every point and every setting -> predicted.json
    for each setting: start it, measure   -> measured.jsonl
    all that is in the record             -> tables, errors, Kendall's tau

Everything goes into a folder, the record, so that a part of the settings may be measured at a time
(`--points 0-3`) and later parts join. A start takes about a minute, so all runs under one setting use
one server; between them it is told to forget its prefixes. What the server says of its settings must
be what was predicted with, or the run is refused. Ahead of each run a crowd of other requests shows how fast
the machine is just then, in the steps of the calibration: its pace. "At its pace" has that factor taken out.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from bench.fidelity.comparison import (
    SHARES,
    compare,
    error_pct,
    kendall_tau,
    preemptions_of,
    seen_of,
    spread_pct,
)
from bench.fidelity.record import Seen
from bench.fidelity.scenarios import LONG, MIXED, SHARED, SHORT, Budgets, Kind, Scenario, as_trace, requests
from headrace.cli.calibrate_url import calibrate_url, in_words
from headrace.cli.costs import load_cost, save
from headrace.cli.measuring import Target, run_timetable
from headrace.core.cost import CostModel, StepShape
from headrace.core.exchange import Arrival
from headrace.core.settings import Settings
from headrace.core.timeline import Timeline
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.measure.serving import crowd, step_ns_of
from headrace.net.ports import reserved_port
from headrace.net.server_facts import server_facts
from headrace.sim.measurement import timelines_and_failures
from headrace.sim.run import Fleet, simulate
from headrace.targets.vllm import SERVED_NAME, VllmInstallation, VllmServer
from headrace.workload.trace import TraceRequest

INSTALLATION = VllmInstallation(Path(".vllm"))
MODEL = "smollm2"
CALIBRATE_S = 200.0
CALIBRATION_SEED = 77_000_000
REPEATS = 2
RUN_S = {SHORT: 22.0, LONG: 36.0, MIXED: 26.0, SHARED: 22.0}
RANKED_RUN_S = 20.0
RANKED_LOAD = 0.9
"""Of what the twin says the defaults can do."""
WARM_UP_REQUESTS = 8
TIMEOUT_S = 240.0
PROBE_RPS = 4.0
"""Only says how many requests the twin is given to find the knee with."""


@dataclass(frozen=True, slots=True)
class Paced:
    """A cost model on a machine that is slower by a factor."""

    cost: CostModel
    pace: float

    def step_ns(self, shape: StepShape) -> int:
        return round(self.cost.step_ns(shape) * self.pace)


@dataclass(frozen=True, slots=True)
class Setting:
    """One start of vLLM: what is ranked with the others, and the points measured under it."""

    budgets: Budgets
    points: tuple[Scenario, ...] = ()


def _setting(budgets: Budgets, *points: tuple[Kind, float]) -> Setting:
    return Setting(budgets, tuple(Scenario(kind, load, budgets) for kind, load in points))


_FEW_BLOCKS: Budgets = {"max_model_len": 1536, "num_gpu_blocks_override": 14}
"""1,664 tokens: some requests must give way to others."""

SETTINGS = (
    _setting({}, (SHORT, 0.6), (SHORT, 1.3)),
    _setting({"max_num_batched_tokens": 256, "max_num_seqs": 16}, (MIXED, 0.9)),
    _setting({"max_num_batched_tokens": 2048, "max_num_seqs": 3}),
    _setting(_FEW_BLOCKS, (SHORT, 1.4)),
    _setting({"max_num_batched_tokens": 512, "long_prefill_token_threshold": 128}, (LONG, 1.2)),
    _setting({"max_num_batched_tokens": 128, "max_num_seqs": 32}, (SHORT, 1.0)),
    _setting({"max_num_batched_tokens": 2048, "max_num_seqs": 6}, (SHARED, 0.9)),
    _setting({"max_num_batched_tokens": 512, "max_num_seqs": 4}),
    _setting({"max_num_batched_tokens": 128, "max_num_seqs": 8}, (MIXED, 0.9)),
    _setting({"max_num_batched_tokens": 64, "max_num_seqs": 32}, (LONG, 0.6)),
    _setting({"max_num_batched_tokens": 2048, "max_num_seqs": 2}),
    _setting({"max_num_batched_tokens": 32, "max_num_seqs": 16}, (SHARED, 1.1)),
)


class Record:
    """The folder that parts of the benchmark share."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cost_file = folder / "cost.json"
        self._predicted = folder / "predicted.json"
        self._measured = folder / "measured.jsonl"

    def predict(self, name: str, seen: Seen) -> None:
        self._predicted.write_text(json.dumps(self._predictions | {name: asdict(seen)}, indent=1) + "\n")

    def add(self, name: str, seen: Seen) -> None:
        with self._measured.open("a") as file:
            file.write(json.dumps({"run": name} | asdict(seen)) + "\n")

    @property
    def _predictions(self) -> dict[str, dict[str, float]]:
        return json.loads(self._predicted.read_text()) if self._predicted.exists() else {}

    def predicted(self, name: str) -> Seen:
        return Seen(**self._predictions[name])

    def measured(self, name: str) -> list[Seen]:
        lines = self._measured.read_text().splitlines() if self._measured.exists() else []
        rows = [json.loads(line) for line in lines]
        return [Seen(**{key: row[key] for key in row if key != "run"}) for row in rows if row["run"] == name]


class Bench:
    """The twin and the real thing, with the same requests for both."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def _cost(self) -> FittedCost:
        cost = load_cost(str(self.record.cost_file))
        assert isinstance(cost, FittedCost)
        return cost

    @cached_property
    def _tokenizer(self) -> OpenVinoTokenizer:
        return OpenVinoTokenizer(locate(MODEL))

    def calibrate(self, server: VllmServer) -> None:
        """`server` runs with its defaults. Predicts everything at once, before anything is measured."""
        found = calibrate_url(server.url, SERVED_NAME, CALIBRATION_SEED, _say, CALIBRATE_S)
        save(found.cost, self.record.cost_file)
        print("\n".join(in_words(found)), flush=True)
        self.predict()

    def predict(self) -> None:
        for setting in SETTINGS:
            for scenario in setting.points:
                self.record.predict(str(scenario), self.simulated(self.arrivals(scenario), setting.budgets))
            self.record.predict(rank_name(setting), self.simulated(self.ranked(), setting.budgets))

    def arrivals(self, scenario: Scenario, run_s: float | None = None) -> tuple[Arrival, ...]:
        """At `scenario.load` times the rate at which the twin, given everything at once, gets done."""
        run_s = RUN_S[scenario.kind] if run_s is None else run_s
        seed = sum(map(ord, str(scenario)))
        probe = requests(scenario.kind, PROBE_RPS, run_s, seed)
        at_once = [replace(traced, due_at=0.0) for traced in self._trace(probe)]
        simulated = simulate(at_once, self.settings(scenario.budgets), self._cost)
        knee_rps = len(probe) / max(ends[-1] / 1e9 for ends in simulated.step_ends_ns)
        return requests(scenario.kind, scenario.load * knee_rps, run_s, seed)

    def ranked(self) -> tuple[Arrival, ...]:
        """What all settings are ranked by."""
        return self.arrivals(Scenario(MIXED, RANKED_LOAD, {}), RANKED_RUN_S)

    def simulated(self, arrivals: Sequence[Arrival], budgets: Budgets, pace: float = 1.0) -> Seen:
        assert self._cost.front_end is not None, "a calibration measures it"
        fleet = Fleet(front_end=self._cost.front_end)
        cost = Paced(self._cost, pace)
        simulated = simulate(self._trace(arrivals), self.settings(budgets), cost, fleet=fleet)
        return seen_of(timelines_and_failures(simulated), simulated.preemptions)

    def measure(self, setting: Setting, server: VllmServer) -> None:
        """All runs under one setting, on a server that was started with it."""
        self._refuse_other_settings(server.url, setting.budgets)
        self._run(rank_name(setting), self.ranked(), server.url, setting.budgets)
        for scenario in setting.points:
            for _ in range(REPEATS):
                self._run(str(scenario), self.arrivals(scenario), server.url, setting.budgets)

    def _run(self, name: str, arrivals: Sequence[Arrival], url: str, budgets: Budgets) -> None:
        target = Target(url, SERVED_NAME)
        count = min(WARM_UP_REQUESTS, self.settings(budgets).max_num_seqs)
        shape, step_ns = step_ns_of(asyncio.run(run_timetable(target, crowd(count, seed=9_000_000))))
        pace = step_ns / self._cost.step_ns(shape)
        _forget_prefixes(url)
        before = preemptions_of(url)
        results = asyncio.run(run_timetable(target, arrivals, TIMEOUT_S))
        seen = replace(seen_of(results, preemptions_of(url) - before), pace=pace)
        self._refuse_other_lengths(arrivals, [each for each in results if isinstance(each, Timeline)])
        self.record.add(name, seen)
        print(f"{name}: measured at pace {pace:.2f}", file=sys.stderr, flush=True)

    def _refuse_other_settings(self, url: str, budgets: Budgets) -> None:
        facts, ours = asdict(asyncio.run(server_facts(url))), asdict(self.settings(budgets))
        differ = {
            name: (said, ours[name])
            for name, said in facts.items()
            if said is not None and name in ours and said != ours[name]
        }
        assert not differ, f"the server's settings and the twin's: {differ}"
        assert facts["max_num_batched_tokens"] is not None, "the server does not tell its settings"

    def _refuse_other_lengths(self, arrivals: Sequence[Arrival], timelines: Sequence[Timeline]) -> None:
        ours = [traced.prompt_tokens for traced in self._trace(arrivals)]
        theirs = [timeline.prompt_tokens for timeline in timelines]
        assert ours == theirs, "the server counts other prompt tokens than the twin"

    def _trace(self, arrivals: Sequence[Arrival]) -> tuple[TraceRequest, ...]:
        assert self._cost.machine is not None, "vLLM tells its KV cache"
        return as_trace(arrivals, self._tokenizer, self._cost.machine.block_size)

    def settings(self, budgets: Budgets) -> Settings:
        machine = self._cost.machine
        assert machine is not None, "vLLM tells its KV cache"
        return Settings(
            max_model_len=budgets.get("max_model_len", machine.max_model_len),
            num_gpu_blocks=budgets.get("num_gpu_blocks_override", machine.num_gpu_blocks(machine.block_size)),
            block_size=machine.block_size,
            max_num_batched_tokens=budgets.get("max_num_batched_tokens", machine.max_num_batched_tokens),
            max_num_seqs=budgets.get("max_num_seqs", machine.max_num_seqs),
            long_prefill_token_threshold=budgets.get("long_prefill_token_threshold", 0),
        )


def run(folder: Path, points: Sequence[int]) -> dict[str, object]:
    """Calibrate where the record has none, measure the settings of these numbers, say what is known."""
    if not INSTALLATION.exists:
        raise SystemExit(f"{INSTALLATION.folder} has no vLLM: `make vllm` builds its environment")
    _say(f"the record is in {folder}")
    bench = Bench(Record(folder))
    if not bench.record.cost_file.exists():
        with reserved_port() as port, VllmServer(INSTALLATION, {}, port=port) as server:
            bench.calibrate(server)
    for index in points:
        with (
            reserved_port() as port,
            VllmServer(INSTALLATION, dict(SETTINGS[index].budgets), port=port) as server,
        ):
            bench.measure(SETTINGS[index], server)
    return summary(bench)


def numbers(points: str | None) -> list[int]:
    """`0,2-4` as 0, 2, 3, 4; all without a word."""
    if points is None:
        return list(range(len(SETTINGS)))
    found: list[int] = []
    for part in filter(None, points.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def summary(bench: Bench) -> dict[str, object]:
    """Print the tables of all that was measured so far and give the result."""
    record = bench.record
    errors: dict[str, dict[str, float]] = {}
    at_its_pace, spreads, paces = [], [], []
    within = 0
    for setting in SETTINGS:
        for scenario in setting.points:
            measured = record.measured(str(scenario))
            if not measured:
                continue
            arrivals = bench.arrivals(scenario)
            predicted = record.predicted(str(scenario))
            errors[str(scenario)] = compare(f"{scenario}: {len(arrivals)} requests", predicted, measured)
            pace = sum(each.pace for each in measured) / len(measured)
            paced = bench.simulated(arrivals, setting.budgets, pace)
            at_its_pace += [abs(error_pct(paced, measured, name)) for name in SHARES]
            spreads += [spread_pct(measured, name) for name in SHARES]
            within += sum(
                abs(error_pct(predicted, measured, name)) <= max(10.0, spread_pct(measured, name))
                for name in SHARES
            )
            paces.append(round(pace, 3))
            print(f"  machine at {pace:.2f} of the calibration's step time", flush=True)
    tau, ranked = _rank(record)
    sizes = [abs(by_name[name]) for by_name in errors.values() for name in SHARES]
    if not sizes:
        return {"points": 0, "settings_ranked": ranked, "kendall_tau": tau}
    return {
        "median_error_pct": round(median(sizes), 2),
        "worst_error_pct": round(max(sizes), 2),
        "spread_pct": round(median(spreads), 2),
        "kendall_tau": tau,
        "within_10_pct_or_spread": round(within / len(sizes), 3),
        "median_error_at_its_pace_pct": round(median(at_its_pace), 2),
        "worst_error_at_its_pace_pct": round(max(at_its_pace), 2),
        "worst_spread_pct": round(max(spreads), 2),
        "median_error_pct_by_metric": {
            name: round(median(abs(by_name[name]) for by_name in errors.values()), 2) for name in SHARES
        },
        "preemptions": {
            name: {"predicted": by_name["predicted_preemptions"], "measured": by_name["preemptions"]}
            for name, by_name in errors.items()
            if by_name["predicted_preemptions"] or by_name["preemptions"]
        },
        "paces": paces,
        "points": len(errors),
        "settings_ranked": ranked,
    }


def rank_name(setting: Setting) -> str:
    words = ", ".join(f"{name} {value}" for name, value in setting.budgets.items())
    return f"rank: {words or 'defaults'}"


def _rank(record: Record) -> tuple[float | None, int]:
    """Kendall's tau of P95 TTFT over the settings measured so far; None below two."""
    names = [rank_name(setting) for setting in SETTINGS if record.measured(rank_name(setting))]
    rows = [(name, record.predicted(name).ttft_p95_s, record.measured(name)[0].ttft_p95_s) for name in names]
    if len(rows) < 2:
        return None, len(rows)
    print(f"\nTTFT P95 under {len(rows)} settings, {MIXED.name} at {RANKED_LOAD:g} of the defaults' knee, s")
    print(f"  {'':<66}{'said':>8}{'seen':>8}")
    for name, said, seen in sorted(rows, key=lambda row: row[2]):
        print(f"  {name.removeprefix('rank: '):<66}{said:>8.2f}{seen:>8.2f}", flush=True)
    return round(kendall_tau([row[1] for row in rows], [row[2] for row in rows]), 3), len(rows)


def _forget_prefixes(url: str) -> None:
    request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
