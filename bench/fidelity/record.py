"""What a run of the benchmark has seen so far, so that it can be done in parts.

    FILE.jsonl        one line for each real run: the point, the numbers, how much others took of the machine
    FILE.cost.json    the cost model, written before the first of them

Predictions are made from the stored cost model alone, so it does not matter when they are computed.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.cli.costs import load_cost, save
from headrace.executor.cost import FittedCost
from headrace.measure.neighbours import DISTURBED_CORES


@dataclass(frozen=True, slots=True)
class Seen:
    """One run in numbers, real or predicted."""

    ttft_p50_s: float
    ttft_p95_s: float
    itl_mean_s: float
    output_tokens_per_s: float
    preemptions: float
    pace: float = 1.0
    """Of the machine just before: how long a step took, in those of the calibration."""
    others_cores: float = 0.0
    """Processors that others kept busy meanwhile."""

    @property
    def is_disturbed(self) -> bool:
        return self.others_cores > DISTURBED_CORES


class Record:
    """Real runs by point. With a path, also kept there; what the file holds already counts as done."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: list[tuple[str, Seen]] = []
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._runs.append((row.pop("point"), Seen(**row)))

    def cost(self) -> FittedCost | None:
        """That of the parts before."""
        if self._path is None or not self._cost_path(self._path).exists():
            return None
        cost = load_cost(str(self._cost_path(self._path)))
        assert isinstance(cost, FittedCost), "kept by `keep_cost`"
        return cost

    def keep_cost(self, cost: FittedCost) -> None:
        if self._path is not None:
            save(cost, self._cost_path(self._path))

    def add(self, point: str, seen: Seen) -> None:
        self._runs.append((point, seen))
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"point": point} | asdict(seen)) + "\n")

    def quiet(self, point: str) -> Sequence[Seen]:
        """Its runs that nobody disturbed."""
        return [seen for name, seen in self._runs if name == point and not seen.is_disturbed]

    @property
    def disturbed(self) -> int:
        """How many runs were thrown away."""
        return sum(seen.is_disturbed for _, seen in self._runs)

    @staticmethod
    def _cost_path(path: Path) -> Path:
        return path.with_suffix(".cost.json")
