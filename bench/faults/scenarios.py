"""The faults: under which settings, which load and which disturbance, and what must be named.

    FAULTS: name -> Fault(settings, load(pace, seconds) -> Source, disturbance, expected)

A fault is right when what the doctor says first has the expected label and names the cause or the change
in words; a healthy server is right when nothing that is said asks for a change.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench.faults.loads import CHATS, Both, Prompts, chats, documents, held, open_loop
from bench.faults.pace import Speed
from headrace.core.ports import Overrides
from headrace.measure.sources import Source


class Disturbance(Enum):
    """What is done to the server or its client, beside settings and load."""

    NONE = ""
    BUSY_NEIGHBOURS = "other processes compute"
    FEW_CONNECTIONS = "the client opens few connections"
    STOPPED_ENGINE = "SIGSTOP"
    STARTING = "looked at from its start on"


@dataclass(frozen=True, slots=True)
class Pace:
    """What a server can do on this machine: loads are sized by it."""

    speed: Speed
    crowd: int
    """Streams that are too many for it."""
    attempt: int = 0
    """A load that is made again has other texts: a server remembers the prompts of the one before."""

    def seed(self, load: int) -> int:
        """Of the load of that number."""
        return SEED + load + 100 * self.attempt


SEED = 20_261_130

CROWDS = {"embedded": 192, "vllm": 128}
"""By target: with so many a token takes long on a fast machine, too."""
LONGEST_DOCUMENT = 7_000
"""Words, which with their template fit into the model's 8,192 tokens on a machine of any speed."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be named first."""

    label: str
    words: re.Pattern[str]
    """In the claim or the change."""


def _must(label: str, words: str) -> Expected:
    return Expected(label, re.compile(words, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class Fault:
    done: str
    """For a person."""
    load: Callable[[Pace, float], Source]
    """Lasts for so many seconds."""
    expected: Expected | None
    """None: nothing is to be named."""
    settings: Mapping[str, Overrides] = field(default_factory=dict[str, Overrides])
    """By target; the defaults where none are given."""
    disturbance: Disturbance = Disturbance.NONE
    settle_s: float = 6.0
    """From the load's beginning until the doctor looks."""


def _healthy(pace: Pace, for_s: float) -> Source:
    return open_loop(chats(0.2 * _chats_a_second(pace), CHATS, for_s, pace.seed(0)))


def _chats_a_second(pace: Pace) -> float:
    """That the machine can do at most."""
    prompt = sum(CHATS.words) / 2 + TEMPLATE_TOKENS
    return 1.0 / (prompt / pace.speed.prefill + sum(CHATS.tokens) / 2 / pace.speed.decode)


TEMPLATE_TOKENS = 40
"""That a chat template puts around a prompt."""


def _document_words(pace: Pace) -> int:
    """Of one that takes 7 s."""
    return min(int(7.0 * pace.speed.prefill), LONGEST_DOCUMENT)


def _pool(pace: Pace, for_s: float) -> Source:
    return held(16, Prompts((30, 60), (150, 190)), for_s, pace.seed(1))


def _budget(pace: Pace, for_s: float) -> Source:
    streams = held(4, Prompts((20, 40), (250, 300)), for_s, pace.seed(4))
    words = _document_words(pace)
    return Both(streams, open_loop(documents(16.0, words, for_s, pace.seed(4), from_s=9.0)))


def _documents(pace: Pace, for_s: float) -> Source:
    words = _document_words(pace)
    return open_loop(
        chats(0.25 * _chats_a_second(pace), CHATS, for_s, pace.seed(5)),
        documents(14.0, words, for_s, pace.seed(5), from_s=1.0),
    )


def _crowd(pace: Pace, for_s: float) -> Source:
    return held(pace.crowd, Prompts((5, 15), (200, 240)), for_s, pace.seed(2), ramp_s=6.0)


def _shared(pace: Pace, for_s: float) -> Source:
    prompts = Prompts((10, 30), (8, 16), shared_words=int(1.2 * pace.speed.prefill))
    return open_loop(chats(0.35, prompts, for_s, pace.seed(6)))


def _random(pace: Pace, for_s: float) -> Source:
    words = int(0.25 * pace.speed.prefill)
    return open_loop(chats(1.0, Prompts((words, words + 50), (6, 8)), for_s, pace.seed(7)))


def _pressing(pace: Pace, for_s: float) -> Source:
    return open_loop(chats(1.5 * _chats_a_second(pace), CHATS, for_s, pace.seed(8)))


def _two_streams(pace: Pace, for_s: float) -> Source:
    return held(2, Prompts((20, 40), (150, 200)), for_s, pace.seed(3))


FEW_CONNECTIONS = 2
SHORT_STEPS: Overrides = {"max_num_batched_tokens": 256, "max_num_seqs": 64}
"""Some machines take seconds for 2,048 tokens: there what holds the chats is one step, another fault."""

FAULTS: dict[str, Fault] = {
    "cold start": Fault(
        "looked at while it starts; the embedded engine converts its model anew",
        _healthy,
        _must("cold_start_compile", r"ready|start"),
        disturbance=Disturbance.STARTING,
        settle_s=0.0,
    ),
    "healthy": Fault("chats at a fifth of what it can do", _healthy, None),
    "random prefixes": Fault(
        "a prompt a second that begins like no other, answers of a few tokens",
        _random,
        _must("other:expected_behaviour", r"prefix"),
    ),
    "client queues": Fault(
        f"the client has {FEW_CONNECTIONS} connections for 1.5 times what the server can do",
        _pressing,
        _must("client_network", r"client"),
        disturbance=Disturbance.FEW_CONNECTIONS,
    ),
    "CPU starved": Fault(
        "four processes compute beside it",
        _healthy,
        _must("cpu_tokenization", r"other processes"),
        disturbance=Disturbance.BUSY_NEIGHBOURS,
    ),
    "stopped engine": Fault(
        "SIGSTOP to the engine's process under two streams",
        _two_streams,
        _must("other:engine_stall", r"stopped"),
        disturbance=Disturbance.STOPPED_ENGINE,
    ),
    "long documents": Fault(
        "every 14 s a document that takes 7 s, in steps of 256 tokens, among chats",
        _documents,
        _must("scheduling_queueing", r"long-prefill-token-threshold|--scheduling-policy"),
        settings={"embedded": SHORT_STEPS, "vllm": SHORT_STEPS},
    ),
    "too many sequences": Fault(
        "128 streams at once on vLLM, 192 on the embedded engine, as max_num_seqs lets them",
        _crowd,
        _must("scheduling_queueing", r"max-num-seqs"),
        settings={
            "embedded": {"max_num_seqs": 256},
            # Room for all of them: a pool that is full is another fault.
            "vllm": {"max_num_seqs": 256, "num_gpu_blocks_override": 512},
        },
        settle_s=14.0,
    ),
    "pool too small": Fault(
        "16 streams in a pool for about 7",
        _pool,
        _must("preemption_thrash", r"KV|pool"),
        settings={
            "embedded": {"max_model_len": 1536, "num_gpu_blocks_override": 60},
            "vllm": {"max_model_len": 1536, "num_gpu_blocks_override": 14},
        },
    ),
    "token budget too large": Fault(
        "max_num_batched_tokens 8192: a document's prompt is one step of 7 s among 4 streams",
        _budget,
        _must("scheduling_queueing", r"max-num-batched-tokens"),
        settings={
            "embedded": {"max_num_batched_tokens": 8192},
            "vllm": {"max_num_batched_tokens": 8192},
        },
    ),
    "prefix caching off": Fault(
        "prompts share nine tenths of their tokens, caching is off",
        _shared,
        _must("prefix_cache_miss", r"enable-prefix-caching"),
        settings={
            "embedded": {"enable_prefix_caching": False},
            "vllm": {"enable_prefix_caching": False},
        },
    ),
}
"""In order of starts: those under the same settings share a server, the stopped engine is its last."""
