"""The servers that are compared over HTTP, and one visit to each.

    Contender.start() -> a running server -> warm_up, visit -> Visit      only one is asked at a time

All get the same budgets where they have them, as many threads as there are processors, the same model
file (vLLM: the same weights as float32), and requests that are the same to the token.
"""

import asyncio
import os
import re
import shlex
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine.load import MIXED, POINTS, Point
from bench.engine.record import OURS, Record, When, visit_of
from headrace.cli.measuring import Target, run_timetable
from headrace.core.ports import Overrides
from headrace.executor.fetch import SMOLLM2, fetch
from headrace.measure.neighbours import Neighbours
from headrace.net.client import served_models
from headrace.net.ports import reserved_port
from headrace.targets.embedded import EmbeddedServer
from headrace.targets.process import Launch, ServerProcess
from headrace.targets.vllm import VllmInstallation, VllmServer

OURS_SHORTEST, OURS_SLO = f"{OURS} shortest", f"{OURS} slo"
OUR_PRECISION = "weights as in the file, arithmetic and KV float32"
LLAMA = Path(".llama")
VLLM = VllmInstallation(Path(".vllm"))
PROMPT_WORDS = 98
"""With what the model's chat template adds, 128 tokens and one or two more."""
BUDGETS: Overrides = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
SHORTEST_FIRST: Overrides = {"scheduling_policy": "shortest", "long_prefill_token_threshold": 128}
TO_ITS_GOALS: Overrides = {
    "scheduling_policy": "slo",
    "slo": "ttft 500ms + 3ms/token, itl 200ms",
    "long_prefill_token_threshold": 128,
}
SLOTS = 32
SLOT_TOKENS = 3072
"""Room for the longest request of the mix; llama.cpp divides its context into slots of equal size."""
TIMEOUT_S = 120.0
WARM_UP_SEED = -1
REST_S = 0.5
MOST_RESTS = 40

Start = Callable[[], AbstractContextManager[ServerProcess]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that can be started."""

    name: str
    start: Start
    precision: str
    absent: str | None = None
    """Why it cannot be started here."""
    points: Sequence[str] = tuple(POINTS)


def contenders() -> tuple[Contender, ...]:
    """Ours first."""
    llama = LLAMA / "bin" / "python"
    return (
        Contender(OURS, lambda: EmbeddedServer("smollm2", BUDGETS), OUR_PRECISION),
        Contender(
            OURS_SHORTEST,
            lambda: EmbeddedServer("smollm2", BUDGETS | SHORTEST_FIRST),
            OUR_PRECISION,
            points=(MIXED,),
        ),
        Contender(
            OURS_SLO,
            lambda: EmbeddedServer("smollm2", BUDGETS | TO_ITS_GOALS),
            OUR_PRECISION,
            points=(MIXED,),
        ),
        Contender(
            "llama_cpp",
            lambda: LlamaServer(llama, fetch(SMOLLM2)),
            "weights as in the file (Q4_1), activations rounded to 8 bits, KV float16; build with AVX2 only",
            None if llama.exists() else f"no {llama}: `make llama` builds its environment",
        ),
        Contender(
            "vllm",
            _vllm,
            "float32 throughout, the file's weights expanded; --enforce-eager",
            None if VLLM.exists else f"no {VLLM.program}: `make vllm` builds its environment",
        ),
    )


class LlamaServer(ServerProcess):
    """llama.cpp's server in the environment that `make llama` builds."""

    def __init__(self, python: Path, gguf: Path) -> None:
        program = Path(__file__).with_name("llama_server.py")
        words = [
            *(str(python), str(program), str(gguf)),
            *("--threads", str(len(processors())), "--parallel", str(SLOTS)),
            *("--context", str(SLOTS * SLOT_TOKENS)),
        ]
        super().__init__(
            Launch(words, shlex.join(words), _llama_address, lambda lines: lines[-1] if lines else None)
        )


def processors() -> list[int]:
    """Those we may use. OpenVINO takes one thread for each by default, and so does everybody here."""
    return (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    )


def warm_up(server: ServerProcess) -> None:
    for timetable in POINTS["8"].timetables(WARM_UP_SEED, PROMPT_WORDS, 0.0):
        asyncio.run(run_timetable(_target(server), timetable, TIMEOUT_S))


def rest() -> None:
    """Until nobody works: vLLM looks for messages without a pause for some 10 s after the last one."""
    for _ in range(MOST_RESTS):
        neighbours = Neighbours()
        time.sleep(REST_S)
        if not neighbours.disturb():
            return


def visit(name: str, server: ServerProcess, point: Point, when: When, mixed_s: float, record: Record) -> None:
    """Asks it at one point. What the servers that idle beside it take counts as others' processors."""
    target, neighbours = _target(server), Neighbours([server.session])
    runs = [
        asyncio.run(run_timetable(target, timetable, TIMEOUT_S))
        for timetable in point.timetables(when.seed, PROMPT_WORDS, mixed_s)
    ]
    record.add(visit_of(when, name, point.name, runs, neighbours.cores()))
    server.check_alive()


def _target(server: ServerProcess) -> Target:
    return Target(server.url, asyncio.run(served_models(server.url))[0])


@contextmanager
def _vllm() -> Generator[ServerProcess]:
    """By default it would leave one processor to its scheduler, of two on a small machine."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, processors())))
    with reserved_port() as port, VllmServer(VLLM, BUDGETS, port=port) as server:
        yield server


def _llama_address(log_end: bytes) -> str | None:
    found = re.search(rb"^serving at (http://\S+)\s*\n", log_end, re.MULTILINE)
    return None if found is None else found[1].decode()
