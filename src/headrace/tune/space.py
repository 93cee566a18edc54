"""Which settings may be tried at all, each with a reason: from the server, its memory and the traffic.

    Site (what the server has and is) + Demand (what the traffic asks for)  --space_of-->  Space

A setting that could take the server down, or refuse a request of the workload, is not in it, however
fast it might be: memory beyond the headroom, a context shorter than the longest request, a step smaller
than the running requests. What only running shows, preemption storms and failures, the twin and then the
server say (`explore`, `evidence`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from headrace.core.ports import Overrides

Value = int | float | bool | str

TOKENS, SEQS, CAP = "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"
KV_BYTES, MODEL_LEN, BLOCK = "kv_cache_memory_bytes", "max_model_len", "block_size"
WATERMARK, POLICY = "watermark", "scheduling_policy"

LEAST_STEP_TOKENS, MOST_STEP_TOKENS = 64, 32_768
LEAST_CAP_TOKENS = 64
FURTHEST_DOWN, FURTHEST_UP = 16, 8
"""Times smaller or larger than the start: beyond it another deployment is wanted, not another setting."""
SPARE_CONTEXT = 1.25
"""Of the longest request seen: the next one may be longer."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Site:
    """The server as it is found."""

    start: Overrides
    """Every lever's value at the start. A lever that is not in it is not searched."""
    policies: tuple[str, ...] = ()
    """Scheduling policies that it has; empty: leave it alone."""
    block_sizes: tuple[int, ...] = ()
    """Block sizes that its kernels take; empty: leave it alone."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None: not known."""
    kv_bytes_per_token: float | None = None
    headroom_bytes: int = 0
    """Memory that nobody else needs, beyond what the server takes at the start."""
    activation_bytes_per_token: float = 0.0
    """What one more token a step takes at its peak."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the traffic asks for, in tokens."""

    longest_tokens: int
    """Prompt and answer of the longest request."""
    p99_tokens: int
    longest_prompt_tokens: int
    mean_tokens: float
    """Prompt and answer of a request."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a lever, and why it may be worth trying."""

    value: Value
    reason: str


@dataclass(frozen=True, slots=True)
class Lever:
    name: str
    start: Value
    choices: tuple[Choice, ...]
    """In order of value, the start's among them."""

    def near(self, value: Value, reach: int) -> list[Choice]:
        """Choices at most so many places from a value, and the start's. A value that is none: all."""
        places = [at for at, choice in enumerate(self.choices) if choice.value == value]
        return [
            choice
            for at, choice in enumerate(self.choices)
            if not places or abs(at - places[0]) <= reach or choice.value == self.start
        ]


@dataclass(frozen=True, slots=True)
class Space:
    """All settings that may be tried."""

    site: Site
    demand: Demand
    levers: tuple[Lever, ...] = field(default=())

    def canonical(self, overrides: Mapping[str, Value]) -> Overrides:
        """The same settings, without what is as at the start or changes nothing."""
        full = {**self.site.start, **overrides}
        if CAP in full and int(full[CAP]) >= int(full.get(TOKENS, MOST_STEP_TOKENS)):
            full[CAP] = 0  # a step of that many tokens cuts prompts as short
        return {name: value for name, value in full.items() if value != self.site.start.get(name)}

    def refuse(self, overrides: Mapping[str, Value]) -> str | None:
        """Why settings must not be tried; None where they may."""
        full = {**self.site.start, **overrides}
        strangers = sorted(set(overrides) - set(self.site.start))
        if strangers:
            return f"the server has no {', '.join(strangers)}"
        return _refuse_steps(full) or _refuse_context(full, self.demand) or _refuse_memory(full, self.site)

    def is_safe(self, overrides: Mapping[str, Value]) -> bool:
        return self.refuse(overrides) is None

    def neighbours(self, overrides: Mapping[str, Value], reach: int) -> list[Overrides]:
        """All that may be tried and differ from `overrides` in one lever: by so many values, or as at the
        start.
        """
        found = [
            self.canonical({**overrides, lever.name: choice.value})
            for lever in self.levers
            for choice in lever.near(overrides.get(lever.name, lever.start), reach)
        ]
        own = self.canonical(overrides)
        return [each for each in _distinct(found) if each != own and self.is_safe(each)]

    def grid(self, names: Iterable[str], most: int) -> list[Overrides]:
        """All combinations of these levers, every second value where they are more than `most`."""
        levers = [lever for lever in self.levers if lever.name in set(names)]
        columns = [[(lever.name, choice.value) for choice in lever.choices] for lever in levers]
        starts = [(lever.name, lever.start) for lever in levers]
        while (longest := max(columns, key=len, default=[])) and _size(columns) > most and len(longest) > 2:
            place = columns.index(longest)
            columns[place] = _every_second(longest, starts[place])
        combined = (self.canonical(dict(row)) for row in product(*columns))
        return [each for each in _distinct(combined) if self.is_safe(each)]


def demand_of(lengths: Iterable[tuple[int, int]]) -> Demand:
    """From prompt and output tokens of each request; there must be one."""
    pairs = list(lengths)
    totals = sorted(prompt + output for prompt, output in pairs)
    return Demand(
        longest_tokens=totals[-1],
        p99_tokens=totals[min(len(totals) - 1, int(0.99 * len(totals)))],
        longest_prompt_tokens=max(prompt for prompt, _ in pairs),
        mean_tokens=sum(totals) / len(totals),
    )


def space_of(site: Site, demand: Demand) -> Space:
    """Every lever that the server has and that has more than one safe value."""
    makers = {
        TOKENS: _step_tokens,
        SEQS: _seqs,
        CAP: _caps,
        KV_BYTES: _kv_bytes,
        MODEL_LEN: _model_lens,
        BLOCK: _block_sizes,
        WATERMARK: _watermarks,
        POLICY: _policies,
    }
    levers: list[Lever] = []
    for name, make in makers.items():
        if name not in site.start:
            continue
        start = site.start[name]
        choices = {choice.value: choice for choice in make(site, demand)}
        choices[start] = Choice(start, "as the server has it")
        if len(choices) > 1:
            ordered = sorted(choices.values(), key=_in_order)
            levers.append(Lever(name, start, tuple(ordered)))
    return Space(site, demand, tuple(levers))


def _in_order(choice: Choice) -> tuple[float, str]:
    value = choice.value
    return (0.0, value) if isinstance(value, str) else (float(value), "")


def _step_tokens(site: Site, demand: Demand) -> list[Choice]:
    start = int(site.start[TOKENS])
    most = min(
        MOST_STEP_TOKENS, FURTHEST_UP * max(start, 1024), _power_above(4 * demand.longest_prompt_tokens)
    )
    return [
        Choice(
            tokens,
            "shorter steps: less time between two tokens of an answer, and less to wait for the next step"
            if tokens < start
            else "longer steps: more prompts at once, each of them and every answer waits for the whole step",
        )
        for tokens in _rungs(max(LEAST_STEP_TOKENS, start // FURTHEST_DOWN), max(most, start))
    ]


def _seqs(site: Site, demand: Demand) -> list[Choice]:
    start = int(site.start[SEQS])
    most = FURTHEST_UP * start
    if site.kv_tokens is not None:
        most = min(most, max(start, _power_above(int(site.kv_tokens / demand.mean_tokens))))
    return [
        Choice(
            seqs,
            "fewer answers at once: each is faster, fewer are preempted, others wait for a slot"
            if seqs < start
            else f"room for more at once: the KV cache holds {_held(site, demand)} of the mean length",
        )
        for seqs in _rungs(max(1, start // FURTHEST_DOWN), most)
    ]


def _held(site: Site, demand: Demand) -> str:
    return "an unknown number of" if site.kv_tokens is None else f"{site.kv_tokens / demand.mean_tokens:,.0f}"


def _caps(site: Site, demand: Demand) -> list[Choice]:
    del site
    longest = demand.longest_prompt_tokens
    return [
        Choice(0, "no cap: one long prompt may take a whole step"),
        *(
            Choice(cap, f"a prompt of {longest:,} tokens leaves room in each of its steps for newcomers")
            for cap in _rungs(LEAST_CAP_TOKENS, longest - 1)
        ),
    ]


def _kv_bytes(site: Site, demand: Demand) -> list[Choice]:
    del demand
    start = int(site.start[KV_BYTES])
    more = [site.headroom_bytes // 2 // _MIB * _MIB, site.headroom_bytes // _MIB * _MIB]
    return [
        Choice(start + each, f"{each / _MIB:,.0f} MiB of memory are to spare: fewer waits for KV blocks")
        for each in more
        if each > 0
    ]


def _model_lens(site: Site, demand: Demand) -> list[Choice]:
    """Only downwards, and never below what the traffic needs."""
    start = int(site.start[MODEL_LEN])
    wanted = _power_above(int(SPARE_CONTEXT * demand.longest_tokens))
    if wanted >= start:
        return []
    why = f"the longest request has {demand.longest_tokens:,} tokens, 99 % have at most {demand.p99_tokens:,}"
    return [Choice(wanted, why)]


def _block_sizes(site: Site, demand: Demand) -> list[Choice]:
    del demand
    return [
        Choice(size, "smaller blocks waste less, larger ones are looked up faster")
        for size in site.block_sizes
    ]


def _watermarks(site: Site, demand: Demand) -> list[Choice]:
    del site, demand
    return [Choice(share, "blocks kept free for those who run: fewer preemptions") for share in (0.01, 0.05)]


def _policies(site: Site, demand: Demand) -> list[Choice]:
    del demand
    return [Choice(policy, "another order of those who wait") for policy in site.policies]


def _refuse_steps(full: Mapping[str, Value]) -> str | None:
    tokens, seqs = int(full.get(TOKENS, MOST_STEP_TOKENS)), int(full.get(SEQS, 1))
    if not 1 <= seqs <= tokens:
        return f"{SEQS} ({seqs}) must lie between 1 and {TOKENS} ({tokens})"
    if not 0 <= float(full.get(WATERMARK, 0)) < 1:
        return f"{WATERMARK} ({full[WATERMARK]}) is a share of the blocks, in [0, 1)"
    return None


def _refuse_context(full: Mapping[str, Value], demand: Demand) -> str | None:
    if MODEL_LEN not in full:
        return None
    most = int(full[MODEL_LEN])
    if most < demand.longest_tokens:
        return f"{MODEL_LEN} ({most:,}) would refuse the longest request, {demand.longest_tokens:,} tokens"
    if int(full.get(CAP, 0)) > most:
        return f"{CAP} ({full[CAP]}) is more than {MODEL_LEN} ({most:,})"
    return None


def _refuse_memory(full: Mapping[str, Value], site: Site) -> str | None:
    """What is asked for beyond the start, against the headroom; and whether one request still fits."""
    more = float(full.get(KV_BYTES, 0)) - float(site.start.get(KV_BYTES, 0))
    step = float(full.get(TOKENS, 0)) - float(site.start.get(TOKENS, 0))
    asked = max(0.0, more) + max(0.0, step) * site.activation_bytes_per_token
    if asked > site.headroom_bytes and asked > 0:
        spare = site.headroom_bytes / _MIB
        return f"{asked / _MIB:,.0f} MiB more memory are needed and {spare:,.0f} are to spare"
    if site.kv_tokens is not None and site.kv_bytes_per_token and MODEL_LEN in full:
        holds = site.kv_tokens + more / site.kv_bytes_per_token
        # The start runs, however long a request it allows: what its cache holds is enough.
        if holds < min(float(full[MODEL_LEN]), float(site.start[MODEL_LEN]), float(site.kv_tokens)):
            return f"the KV cache would hold {holds:,.0f} tokens, less than one request of {MODEL_LEN}"
    return None


def _rungs(least: int, most: int) -> list[int]:
    """Powers of two and the numbers halfway between, in [least, most]."""
    powers = [2**exponent for exponent in range(31)]
    both = sorted({*powers, *(power + power // 2 for power in powers if power > 1)})
    return [each for each in both if least <= each <= most]


def _power_above(amount: int) -> int:
    return 1 << max(0, amount - 1).bit_length()


def _size(columns: Iterable[list[tuple[str, Value]]]) -> int:
    size = 1
    for column in columns:
        size *= len(column)
    return size


def _every_second(column: list[tuple[str, Value]], start: tuple[str, Value]) -> list[tuple[str, Value]]:
    """The start's value stays, and every second one around it."""
    at = column.index(start)
    return [each for place, each in enumerate(column) if (place - at) % 2 == 0]


def _distinct(settings: Iterable[Overrides]) -> list[Overrides]:
    found = {tuple(sorted(each.items())): each for each in settings}
    return list(found.values())
