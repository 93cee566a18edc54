"""A plan as a person reads it: does it fit, where does memory go, what does the rest hold, how sure is it."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.capacity.crowd import Crowd
from headrace.capacity.gpus import GIB
from headrace.capacity.memory import MemoryUse
from headrace.capacity.models import ModelShape
from headrace.capacity.plan import Plan
from headrace.capacity.starting import StartingPoint

_MIB = 1 << 20
_KIB = 1 << 10
_LINE = 78


def print_plan(
    plan: Plan, console: Console, remedies: tuple[str, ...] = (), fewer: Plan | None = None
) -> None:
    """All but the workload and the settings.

    `remedies`: what would make it fit. `fewer`: the same on the next smaller number of GPUs, where that
    number was chosen for the reader and is too small.
    """
    console.print(Text(headline(plan), style="bold green" if plan.fits else "bold red"))
    if fewer is not None:
        console.print(Text(fewer_said(fewer)))
    console.print(Text(described(plan), style="dim"))
    for obstacle in plan.obstacles:
        mark, style = ("cannot work", "red") if obstacle.is_fatal else ("beware", "yellow")
        hint = f" Try {obstacle.instead}." if obstacle.instead else ""
        console.print(Text(f"{mark}: ", style=style).append(f"{obstacle.what}.{hint}", style="default"))
    console.print()
    console.print(_memory_table(plan))
    console.print()
    if plan.kv_cache_bytes > 0:
        _print_capacity(plan, console)
    if remedies:
        console.print(Text("What would fit", style="bold"))
        for remedy in remedies:
            console.print(Text(f"  {remedy}"))


def headline(plan: Plan) -> str:
    name = f"{plan.deployment.model.name} on {gpus_said(plan)}"
    if plan.fatal:
        return f"{name}: CANNOT WORK"
    if plan.kv_cache_bytes <= 0:
        short = -plan.kv_cache_bytes / GIB
        return f"{name}: DOES NOT FIT, {short:.1f} GiB short on each GPU before any KV cache"
    if not plan.has_room:
        return (
            f"{name}: DOES NOT FIT at max_model_len {plan.asked.max_model_len:,}: a request of that length "
            f"needs {plan.bytes_per_request / GIB:.1f} GiB of KV cache, and {plan.kv_cache_bytes / GIB:.1f} "
            "are left"
        )
    if plan.overdrawn_bytes:
        return (
            f"{name}: DOES NOT FIT, {plan.overdrawn_bytes / GIB:.1f} GiB short on each GPU with "
            f"{plan.kv_cache_bytes / GIB:.1f} GiB of KV cache, as was asked for"
        )
    return f"{name}: FITS"


def fewer_said(plan: Plan) -> str:
    """Why not on these, which are fewer."""
    size = flag_of("tensor_parallel_size", str(plan.deployment.tensor_parallel_size))
    if plan.kv_cache_bytes <= 0:
        return f"{size} is {-plan.kv_cache_bytes / GIB:.1f} GiB short on each GPU before any KV cache"
    if plan.overdrawn_bytes:
        return f"{size} is {plan.overdrawn_bytes / GIB:.1f} GiB short on each GPU with that KV cache"
    if plan.longest <= 1:
        return f"{size} leaves {plan.kv_cache_bytes / GIB:.2f} GiB for KV cache, too little for any request"
    return f"{size} would hold {flag_of('max_model_len', str(plan.longest))}, not {plan.asked.max_model_len}"


def gpus_said(plan: Plan) -> str:
    deployment = plan.deployment
    degrees = [
        f"{short} {size}"
        for short, size in (
            ("TP", deployment.tensor_parallel_size),
            ("PP", deployment.pipeline_parallel_size),
            ("DP", deployment.data_parallel_size),
        )
        if size > 1
    ]
    split = f" ({', '.join(degrees)})" if degrees else ""
    return f"{deployment.num_gpus} x {deployment.gpu.name}{split}"


def described(plan: Plan) -> str:
    """The model and how it is served, in one line."""
    deployment = plan.deployment
    model = deployment.model
    formats = f"{deployment.weight_dtype} weights, {deployment.kv_cache_dtype} KV cache"
    if plan.asked.weights_bytes is not None:
        formats = f"{plan.asked.weights_bytes / GIB:.2f} GiB of weights, {deployment.kv_cache_dtype} KV cache"
    return f"{_parameters(model)}; {attention_said(model)}; {formats}; vLLM {deployment.vllm_version}"


def _parameters(model: ModelShape) -> str:
    total = f"{model.parameters / 1e9:.3g} billion parameters"
    return f"{total}, {model.active_parameters / 1e9:.3g} active" if model.experts else total


def attention_said(model: ModelShape) -> str:
    """The kinds of layers, for people."""
    if model.latent is not None:
        heads = f"MLA of rank {model.latent.kv_lora_rank}"
    elif model.num_kv_heads == model.num_heads:
        heads = f"{model.num_heads} heads"
    else:
        heads = f"{model.num_heads} heads on {model.num_kv_heads} KV heads"
    kinds = [f"{model.num_layers} layers, {heads}"]
    if model.window is not None:
        what = "chunks" if model.window.is_chunked else "a window"
        kinds.append(f"{model.window.layers} with {what} of {model.window.tokens:,}")
    if model.recurrent is not None:
        kinds.append(f"{model.recurrent.layers} with a state instead")
    return ", ".join(kinds)


def memory_rows(plan: Plan) -> list[tuple[str, int]]:
    """What it goes to, and bytes; together the card's memory where it fits."""
    use = plan.memory
    graphs = "CUDA graphs, estimated" if use.graphs_are_counted else "CUDA graphs, beyond the share"
    rows = [
        ("weights", use.weights),
        (f"activations of a step of {plan.deployment.max_num_batched_tokens:,} tokens", use.activations),
        (
            "outside torch: CUDA, libraries" + (", NCCL" if plan.deployment.num_gpus > 1 else ""),
            use.non_torch,
        ),
        (graphs, use.cuda_graphs),
        ("KV cache" if plan.kv_cache_bytes > 0 else "KV cache: missing", plan.kv_cache_bytes),
    ]
    rows.append((_left_said(plan), use.total - sum(taken for _, taken in rows)))
    return rows


def _left_said(plan: Plan) -> str:
    if plan.asked.kv_cache_memory_bytes is not None:
        return "not used by vLLM"
    return f"not used, by gpu_memory_utilization {plan.deployment.gpu_memory_utilization:g}"


def _memory_table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("Where the memory of each GPU goes", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    total = plan.memory.total
    for what, taken in memory_rows(plan):
        style = "bold" if what == "KV cache" else "red" if taken < 0 else ""
        table.add_row(what, f"{taken / GIB:.2f}", f"{taken / total:.1%}", style=style)
    table.add_row("all, as the driver reports it", f"{total / GIB:.2f}", "100.0%", style="dim")
    return table


def _print_capacity(plan: Plan, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value in capacity_rows(plan):
        table.add_row(name, Text(value))
    console.print(table)
    console.print()


def capacity_rows(plan: Plan) -> list[tuple[str, str]]:
    """Name and what to say of it."""
    layout = plan.layout
    groups = f" in {layout.num_groups} groups" if layout.num_groups > 1 else ""
    each = f"{layout.bytes_per_block / _MIB:.3g} MiB each; {_block_sizes(plan)} tokens a block"
    replicas = plan.deployment.data_parallel_size
    on_each = f" on each of {replicas} replicas" if replicas > 1 else ""
    length = f"{plan.asked.max_model_len:,} tokens"
    growth = f"{layout.bytes_per_token / _KIB:.4g} KiB for each more of a request"
    rows = [
        ("KV blocks", f"{plan.num_blocks:,}{groups}, {each}"),
        ("KV cache size", f"{plan.tokens:,} tokens, {growth}"),
        ("Concurrency", f"{plan.max_concurrency:.2f} requests of {length} at once{on_each}"),
        ("Longest", f"--max-model-len {plan.longest}, {_of_the_models(plan)}"),
    ]
    return [*rows, *_estimate_rows(plan)] if plan.is_estimated else rows


def _estimate_rows(plan: Plan) -> list[tuple[str, str]]:
    hundredth = plan.memory.total // 100
    tokens = int(hundredth / plan.layout.bytes_per_token)
    fewer, more = plan.kv_cache_between
    flags = (
        f"0.01 of gpu_memory_utilization is {hundredth / GIB:.2f} GiB, {tokens:,} tokens; "
        f"--kv-cache-memory-bytes {plan.kv_cache_bytes} is this KV cache, whatever the rest turns out to take"
    )
    between = f"KV cache {fewer / GIB:.1f} to {more / GIB:.1f} GiB"
    why = "activations, graphs and drivers differ from start to start"
    return [
        ("What flags do", flags),
        ("Uncertain", f"{between}, {_change(fewer, plan)} to {_change(more, plan)}: {why}"),
    ]


def _block_sizes(plan: Plan) -> str:
    sizes = sorted({group.block_size for group in plan.layout.groups})
    return " or ".join(f"{size:,}" for size in sizes)


def _of_the_models(plan: Plan) -> str:
    longest = plan.deployment.model.max_model_len
    return "all that the model can" if plan.longest >= longest else f"of the model's {longest:,}"


def _change(to: int, plan: Plan) -> str:
    return f"{to / plan.kv_cache_bytes - 1:+.0%}"


def print_crowd(crowd: Crowd, name: str, requests: int, console: Console) -> None:
    """How many of a workload's requests fit at once."""
    console.print(Text(f"Of {name}, {requests:,} requests", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row(f"{crowd.typical:,.0f}", "run at once when more ask than fit: then the KV cache is full")
    table.add_row(
        f"{crowd.safe:,.0f}", "at once fill it one time in 20: beyond, waits for KV and preemptions"
    )
    table.add_row(f"{crowd.all_longest:,.1f}", "if each were as long as the longest of them")
    console.print(table)
    said = f"A request holds {crowd.mean_blocks:,.1f} blocks on average over its life"
    if crowd.shared:
        said += f"; {crowd.shared:.0%} of the prompts is shared with others there at the same time"
    console.print(Text(f"{said}.", style="dim"))
    if crowd.too_long:
        console.print(Text(f"{crowd.too_long:,} of them are too long for it, and left out.", style="yellow"))
    console.print()


def print_starting_points(
    points: tuple[StartingPoint, ...], model: str, base: Mapping[str, str], console: Console
) -> None:
    """`base`: settings that hold for all of them, where they do not choose others."""
    console.print(Text("Settings to start from; headrace tune finds better ones", style="bold"))
    for point in points:
        chosen = {**base, **{choice.name: choice.value for choice in point.choices}}
        console.print(Text(f"\n{point.kind}", style="bold"))
        console.print(Text(_command(f"  vllm serve {model}", chosen)), soft_wrap=True)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(style="dim")
        for choice in point.choices:
            table.add_row(f"  {choice.name}", choice.why)
        console.print(table)


def _command(program: str, settings: Mapping[str, str]) -> str:
    """Over several lines where one would be too long, ready for a shell."""
    lines = [program]
    for name, value in settings.items():
        flag = flag_of(name, value)
        if len(lines[-1]) + len(flag) + 3 > _LINE:
            lines[-1] += " \\"
            lines.append(f"    {flag}")
        else:
            lines[-1] += f" {flag}"
    return "\n".join(lines)


def flag_of(name: str, value: str) -> str:
    return f"--{name.replace('_', '-')} {value}".rstrip()


def memory_json(use: MemoryUse) -> dict[str, int]:
    """Bytes by what they are for."""
    return {
        "total": use.total,
        "requested": use.requested,
        "weights": use.weights,
        "activations": use.activations,
        "non_torch": use.non_torch,
        "cuda_graphs": use.cuda_graphs,
    }
