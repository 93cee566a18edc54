"""Cards that hold a model, the best first: what each promises within the objectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.capacity.plan import Plan
from headrace.report.plan_json import plan_json
from headrace.report.units import seconds


@dataclass(frozen=True, slots=True)
class Fit:
    """One card, on as many GPUs as its plan says."""

    plan: Plan
    rate: float | None
    """The highest of one replica that met, requests a second; None where none did."""
    is_at_least: bool
    """It met at every rate that was tried."""
    ttft_p95_s: float | None
    itl_p95_s: float | None
    replicas: int | None
    """For the workload as it is; None where it was not asked for, or could not be met."""

    @property
    def num_gpus(self) -> int | None:
        """Of all replicas."""
        return None if self.replicas is None else self.replicas * self.plan.deployment.num_gpus

    @property
    def rate_per_gpu(self) -> float:
        return 0.0 if self.rate is None else self.rate / self.plan.deployment.num_gpus


def ranked(found: Sequence[Fit]) -> list[Fit]:
    """Fewest GPUs for the workload first, or the highest rate of a GPU; those that meet nothing last."""

    def order(fit: Fit) -> tuple[bool, float, float, int]:
        gpus = float("inf") if fit.num_gpus is None else fit.num_gpus
        return fit.rate is None, gpus, -fit.rate_per_gpu, fit.plan.memory.total

    return sorted(found, key=order)


def print_fits(found: Sequence[Fit], objectives: str, traffic: str, console: Console) -> None:
    """`found` in the order to show. `traffic`: what was sent, in words."""
    with_replicas = any(fit.replicas is not None for fit in found)
    console.print(Text(f"Within {objectives}", style="bold"))
    console.print(Text(f"Sent: {traffic}. Simulated on first principles.", style="dim"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("GPUs", no_wrap=True)
    for name in ("req/s", "per GPU", "TTFT p95", "ITL p95", *(["replicas"] if with_replicas else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("figures", style="dim", no_wrap=True)
    for fit in found:
        table.add_row(*_cells(fit, with_replicas))
    console.print(table)


def _cells(fit: Fit, with_replicas: bool) -> list[str]:
    deployment = fit.plan.deployment
    cells = [f"{deployment.num_gpus} x {deployment.gpu.name}"]
    if fit.rate is None:
        cells += ["none", "", "", ""]
    else:
        more = ">" if fit.is_at_least else ""
        cells += [f"{more}{fit.rate:.3g}", f"{fit.rate_per_gpu:.3g}", _time(fit.ttft_p95_s)]
        cells.append(_time(fit.itl_p95_s))
    if with_replicas:
        cells.append("" if fit.replicas is None else str(fit.replicas))
    return [*cells, str(deployment.gpu.certainty)]


def _time(amount_s: float | None) -> str:
    return "" if amount_s is None else seconds(amount_s)


def fits_json(found: Sequence[Fit], objectives: str, traffic: str) -> dict[str, Any]:
    return {
        "slo": objectives,
        "traffic": traffic,
        "fits": [
            {
                "requests_per_s": fit.rate,
                "is_at_least": fit.is_at_least,
                "ttft_p95_s": fit.ttft_p95_s,
                "itl_p95_s": fit.itl_p95_s,
                "replicas": fit.replicas,
                "gpus": fit.num_gpus,
                "plan": plan_json(fit.plan),
            }
            for fit in found
        ],
    }
