"""What the doctor says: a label, a claim, the numbers under it, and what to do."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Label(StrEnum):
    COMPUTE = "compute"
    KV_CAPACITY = "kv_capacity"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    CPU = "cpu_tokenization"
    QUEUEING = "scheduling_queueing"
    THRASH = "preemption_thrash"
    PREFIX_MISS = "prefix_cache_miss"
    COLD_START = "cold_start_compile"
    SHIFT = "workload_shift"
    CLIENT = "client_network"
    OOM_WEIGHTS = "oom_weights"
    OOM_KV = "oom_kv_capacity"
    OOM_PEAK = "oom_runtime_peak"
    NEIGHBOUR = "multi_instance_memory"
    BAD_FLAGS = "bad_flags"
    MEASUREMENT = "other:measurement"
    INTERCONNECT = "other:interconnect"
    STALL = "other:engine_stall"
    HOST_MEMORY = "other:host_memory"
    DP_IMBALANCE = "other:dp_imbalance"
    EXPECTED = "other:expected_behaviour"
    UNDETERMINED = "other:undetermined"


class Severity(IntEnum):
    """NOTE: nothing to mend. WARNING: requests are slower or fewer than need be. CRITICAL: they fail."""

    NOTE = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Fact:
    """One number or line a claim rests on, and where it stands."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    change: str
    effect: str = ""
    price: str = ""
    verify: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    label: Label
    claim: str
    facts: tuple[Fact, ...]
    advice: Advice
    severity: Severity = Severity.WARNING
    confidence: float = 0.7
    """How far the evidence excludes other causes, 0 to 1: by the rule's own reasoning, not measured."""
    also: tuple[Label, ...] = ()
    """Labels of which this is a case too."""
    rivals: tuple[str, ...] = ()
    """What else it could be, and what would tell."""
    rule: str = ""
    explains: frozenset[Label] = field(default_factory=frozenset[Label])
    """Labels that are only symptoms once this is so: such findings are left out."""
