"""Real vLLM on this machine's CPU: calibrated from outside, predicted, and only then measured.

    start it with its defaults, calibrate -> the cost model, from which everything is predicted
    for each setting: start it, measure   -> the record
    all that is in the record             -> tables, errors, Kendall's tau

A start takes about a minute, so all runs under one setting use one server; between them it is told to
forget its prefixes. What the server says of its settings must be what was predicted with, or the run is
refused. A run while others used the machine is kept but not counted. With a record the benchmark can be
done in parts, `--points 0-3` and later `--points 4-7`.
"""

import asyncio
import sys
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.fidelity.comparison import Point, compare, rank, ranked_name, result_of
from bench.fidelity.measuring import measure, warm_up
from bench.fidelity.record import Record
from bench.fidelity.scenarios import LONG, MIXED, SHARED, SHORT, Budgets, Kind, Scenario
from bench.fidelity.twin import Twin
from headrace.cli.calibrate_url import calibrate_url, in_words
from headrace.cli.measuring import Target
from headrace.executor.cost import FittedCost
from headrace.executor.models import locate
from headrace.executor.tokenizer import OpenVinoTokenizer
from headrace.net.ports import reserved_port
from headrace.net.server_facts import server_facts
from headrace.targets.vllm import SERVED_NAME, VllmInstallation, VllmServer

INSTALLATION = VllmInstallation(Path(".vllm"))
MODEL = "smollm2"
CALIBRATE_S = 200.0
CALIBRATION_SEED = 77_000_000
REPEATS = 2
RUN_S = {SHORT: 22.0, LONG: 36.0, MIXED: 26.0, SHARED: 22.0}
RANKED_RUN_S = 20.0
RANKED = Scenario(MIXED, 0.9, {})
"""What all settings are ranked by: 0.9 of what the twin says the defaults can do."""
PROBE_RPS = 4.0
AIM_PCT = 10.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One start of vLLM: what is ranked with the others, and the points that are measured under it."""

    budgets: Budgets
    scenarios: tuple[Scenario, ...] = ()


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


class Bench(Twin):
    """The twin and the real thing, with the same requests for both."""

    def __init__(self, cost: FittedCost) -> None:
        super().__init__(cost, OpenVinoTokenizer(locate(MODEL)), PROBE_RPS)

    def points(self, setting: Setting) -> list[Point]:
        """What is measured under it, the run by which it is ranked first. All predicted."""
        ranked = self.arrivals(RANKED, RANKED_RUN_S, _seed(RANKED))
        points = [Point(ranked_name(setting.budgets), setting.budgets, ranked, 1)]
        for scenario in setting.scenarios:
            arrivals = self.arrivals(scenario, RUN_S[scenario.kind], _seed(scenario))
            points.append(Point(str(scenario), setting.budgets, arrivals, REPEATS))
        for point in points:
            point.predicted = self.predict(point.arrivals, point.budgets)
        return points

    def measure(self, point: Point, server: VllmServer, record: Record) -> None:
        """On a server that was started with the point's budgets."""
        target = Target(server.url, SERVED_NAME)
        pace = warm_up(target, self, point.budgets)
        _forget_prefixes(server.url)
        seen, timelines = measure(server, target, point.arrivals)
        ours = [traced.prompt_tokens for traced in self.trace(point.arrivals)]
        theirs = [timeline.prompt_tokens for timeline in timelines]
        assert ours == theirs, "the server counts other prompt tokens than the twin"
        record.add(point.name, replace(seen, pace=pace))
        _say(f"{point.name}: {record.quiet(point.name)[-1:] or 'disturbed'}")

    def refuse_other_settings(self, url: str, budgets: Budgets) -> None:
        """What vLLM says of itself must be what is predicted with."""
        facts, ours = asdict(asyncio.run(server_facts(url))), asdict(self.settings(budgets))
        assert facts["max_num_batched_tokens"] is not None, "the server does not tell its settings"
        told = {name: said for name, said in facts.items() if said is not None and name in ours}
        differ = {name: (said, ours[name]) for name, said in told.items() if said != ours[name]}
        assert not differ, f"the server's settings and the twin's: {differ}"


def run(record: Record, settings: list[int]) -> dict[str, object]:
    """Calibrate where the record has none, measure what these settings lack, say what is known."""
    if not INSTALLATION.exists:
        raise SystemExit(f"{INSTALLATION.folder} has no vLLM: `make vllm` builds its environment")
    bench = Bench(record.cost() or _calibrate(record))
    for number in settings:
        budgets = SETTINGS[number].budgets
        lacking = [point for point in bench.points(SETTINGS[number]) if _lacks(record, point)]
        if not lacking:
            continue
        with reserved_port() as port, VllmServer(INSTALLATION, dict(budgets), port=port) as server:
            bench.refuse_other_settings(server.url, budgets)
            for point in lacking:
                for _ in range(_lacks(record, point)):
                    bench.measure(point, server, record)
    return summary(bench, record)


def summary(bench: Bench, record: Record) -> dict[str, object]:
    """Print the tables of all that was measured undisturbed so far and give the result."""
    by_setting = [bench.points(setting) for setting in SETTINGS]
    points = [point for _, *points in by_setting for point in points if record.quiet(point.name)]
    compared = [compare(point, record.quiet(point.name)) for point in points]
    seen = [ranked for ranked, *_ in by_setting if record.quiet(ranked.name)]
    title = f"{RANKED.kind.name} at {RANKED.load:g} of the defaults' knee"
    tau = rank(title, seen, [record.quiet(ranked.name)[0].ttft_p95_s for ranked in seen])
    for point in (point for points in by_setting for point in points if not record.quiet(point.name)):
        print(f"not measured yet: {point.name}")
    return result_of(compared, tau, len(seen), AIM_PCT) | {
        "disturbed_runs_left_out": record.disturbed,
        "calibration_median_residual_pct": round(100 * bench.cost.residual.median, 2),
    }


def numbers(points: str | None) -> list[int]:
    """`0,2-4` as 0, 2, 3, 4; all without a word."""
    if points is None:
        return list(range(len(SETTINGS)))
    found: list[int] = []
    for part in filter(None, points.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _calibrate(record: Record) -> FittedCost:
    with reserved_port() as port, VllmServer(INSTALLATION, {}, port=port) as server:
        found = calibrate_url(server.url, SERVED_NAME, CALIBRATION_SEED, _say, CALIBRATE_S)
    print("\n".join(in_words(found)), flush=True)
    record.keep_cost(found.cost)
    return found.cost


def _lacks(record: Record, point: Point) -> int:
    return max(0, point.repeats - len(record.quiet(point.name)))


def _seed(scenario: Scenario) -> int:
    return sum(map(ord, str(scenario)))


def _forget_prefixes(url: str) -> None:
    request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
