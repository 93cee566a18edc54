"""Which cards hold a model: a line for each, on the fewest GPUs that do."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.capacity.gpus import GIB
from headrace.capacity.plan import Plan
from headrace.report.plan import described
from headrace.report.plan_json import plan_json


def print_cards(plans: Sequence[Plan], console: Console) -> None:
    """In the order given; those that do not fit are named at the end."""
    fitting = [plan for plan in plans if plan.fits]
    first = plans[0]
    count = f"{len(fitting)} of {len(plans)} cards hold it at max_model_len {_lengths_said(fitting or plans)}"
    console.print(Text(f"{first.deployment.model.name}: {count}", style="bold"))
    console.print(Text(described(first), style="dim"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name in ("GPUs", "GiB each", "weights", "KV cache", "KV tokens", "at once"):
        table.add_column(name, justify="left" if name == "GPUs" else "right", no_wrap=True)
    for plan in fitting:
        table.add_row(
            f"{plan.deployment.num_gpus} x {plan.deployment.gpu.name}",
            f"{plan.memory.total / GIB:.1f}",
            f"{plan.memory.weights / GIB:.2f}",
            f"{plan.kv_cache_bytes / GIB:.2f}",
            f"{plan.tokens:,}",
            f"{plan.max_concurrency:.2f}",
        )
    console.print(table)
    console.print()
    if others := [plan for plan in plans if not plan.fits]:
        names = ", ".join(plan.deployment.gpu.name for plan in others)
        console.print(Text(f"Not even on {_most_gpus(others)} GPUs: {names}.", style="dim"))
        shorter = min((plan for plan in others if plan.longest > 1), key=lambda p: -p.longest, default=None)
        if shorter is not None:
            console.print(
                Text(
                    f"Of these, {shorter.deployment.gpu.name} would with --max-model-len {shorter.longest}.",
                    style="dim",
                )
            )
    if fitting:
        console.print(Text(f"More of one: --gpu {fitting[0].deployment.gpu.name}", style="dim"))
    if any(plan.deployment.tensor_parallel_size > 1 for plan in fitting):
        console.print(Text("What one GPU of each would hold: -tp 1 --max-model-len auto", style="dim"))


def _lengths_said(plans: Sequence[Plan]) -> str:
    """One number, unless each card was asked for its own longest."""
    shortest, longest = (pick(plan.asked.max_model_len for plan in plans) for pick in (min, max))
    return f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"


def _most_gpus(plans: Sequence[Plan]) -> int:
    return max(plan.deployment.num_gpus for plan in plans)


def cards_json(plans: Sequence[Plan]) -> dict[str, Any]:
    return {"fits": any(plan.fits for plan in plans), "cards": [plan_json(plan) for plan in plans]}
