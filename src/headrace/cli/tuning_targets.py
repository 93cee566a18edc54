"""What is tuned, and how it is started, attached to or simulated: one way for all of them.

    target_named("embedded" | "vllm" | "localhost:8000" | "llama-3.1-8b/h100", words) -> Tunable
      Tunable.serve(overrides) -> a server that answers at .url, gone after the `with`
      Tunable.command(overrides) -> what a person types for it

An address is attached to: it is measured as it is, and whoever asks for other settings is refused. The
twin is no server at all; `cli.tuning_twin` judges it.
"""

import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.cli.budgets import Limits
from headrace.cli.serve import DEFAULTS
from headrace.core.errors import BadInput, TargetFailed
from headrace.core.ports import Overrides
from headrace.core.settings import SchedulingPolicy
from headrace.executor.graph import KvCacheDtype
from headrace.executor.models import ModelFiles
from headrace.net.client import base_url
from headrace.net.ports import reserved_port
from headrace.net.server_facts import ServerFacts
from headrace.targets.embedded import EmbeddedServer
from headrace.targets.flags import as_flags
from headrace.targets.vllm import CommandServer, VllmInstallation, VllmServer, command_of, own_command
from headrace.tune.levers import Has

VLLM_GPU = Limits(batched_tokens=2048, num_seqs=256)
"""Where a server does not tell: what vLLM takes for most devices."""


class Served(Protocol):
    """A server that answers."""

    @property
    def url(self) -> str: ...

    @property
    def command(self) -> str: ...

    @property
    def session(self) -> int | None:
        """Whose processor time is its own; None where it is not ours to know."""
        ...

    def check_alive(self) -> None:
        """Raises `TargetFailed` when it has left."""
        ...


class Startable(Protocol):
    """A server that can be measured: started under settings, or attached to as it is."""

    @property
    def name(self) -> str:
        """For a person: `vLLM in .vllm`."""
        ...

    @property
    def identity(self) -> str:
        """What tells it from others; part of the journal's question."""
        ...

    @property
    def restarts(self) -> bool:
        """Whether it may be started under other settings."""
        ...

    @property
    def start_s(self) -> float:
        """What a start takes, roughly: for a plan, before one was seen."""
        ...

    def serve(self, overrides: Overrides) -> AbstractContextManager[Served]: ...

    def command(self, overrides: Overrides) -> str: ...

    def start(self, facts: ServerFacts) -> Overrides:
        """Every lever's value at the start, as the running server tells it or as its kind has it."""
        ...

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has: ...


@dataclass(frozen=True, slots=True)
class EmbeddedTarget:
    """The engine of this package on one model."""

    model: str
    files: ModelFiles
    program: Sequence[str] = (sys.executable, "-m", "headrace")
    steps_are_timed: bool = True
    """Whether its model runs in this process, too; else it is calibrated from outside, as others are."""

    restarts: bool = True
    start_s: float = 6.0

    @property
    def name(self) -> str:
        return f"{self.files.name} on the embedded engine"

    @property
    def identity(self) -> str:
        return f"embedded {self.model}"

    def serve(self, overrides: Overrides) -> AbstractContextManager[Served]:
        return EmbeddedServer(self.model, overrides, program=self.program)

    def command(self, overrides: Overrides) -> str:
        return shlex.join(["headrace", "serve", self.model, *as_flags(overrides)])

    def start(self, facts: ServerFacts) -> Overrides:
        """It tells its memory; of its step budgets the defaults are known."""
        start = _vllm_start(facts, DEFAULTS)
        start["max_model_len"] = facts.max_model_len or self.files.max_model_len
        start["scheduling_policy"] = SchedulingPolicy.FCFS.value
        return start

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has:
        del spare_cpus  # it has one process for the API
        return Has(
            policies=(SchedulingPolicy.FCFS.value, SchedulingPolicy.SHORTEST.value),
            enable_prefix_caching=facts.enable_prefix_caching is not False,
            kv_cache_dtype=KvCacheDtype.AUTO.value,
            kv_cache_dtypes=(KvCacheDtype.U8.value,),
        )


def _vllm_start(facts: ServerFacts, limits: Limits) -> Overrides:
    """What it tells, and vLLM's defaults where it does not. A lever of unknown value is left alone."""
    start: Overrides = {
        "max_num_batched_tokens": facts.max_num_batched_tokens or limits.batched_tokens,
        "max_num_seqs": facts.max_num_seqs or limits.num_seqs,
        "long_prefill_token_threshold": facts.long_prefill_token_threshold or 0,
        "watermark": facts.watermark or 0.0,
    }
    if facts.max_model_len is not None:
        start["max_model_len"] = facts.max_model_len
    if facts.kv_cache_memory_bytes is not None:
        start["kv_cache_memory_bytes"] = facts.kv_cache_memory_bytes
    return start


@dataclass(frozen=True, slots=True)
class VllmTarget:
    """Real vLLM on this machine's CPU, as `make vllm` installs it."""

    installation: VllmInstallation

    restarts: bool = True
    start_s: float = 60.0

    @property
    def name(self) -> str:
        return f"vLLM in {self.installation.folder}"

    @property
    def identity(self) -> str:
        return f"vllm {self.installation.folder.resolve()}"

    @contextmanager
    def serve(self, overrides: Overrides) -> Generator[Served]:
        with reserved_port() as port, VllmServer(self.installation, overrides, port=port) as server:
            yield server

    def command(self, overrides: Overrides) -> str:
        return command_of(self.installation, overrides)

    def start(self, facts: ServerFacts) -> Overrides:
        return _vllm_start(facts, DEFAULTS)

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has:
        del spare_cpus  # its worker computes on all of them
        return Has(enable_prefix_caching=facts.enable_prefix_caching)


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """A server that starts by a person's own words."""

    words: tuple[str, ...]

    restarts: bool = True
    start_s: float = 90.0

    @property
    def name(self) -> str:
        return shlex.join(self.words)

    @property
    def identity(self) -> str:
        return f"command {self.name}"

    @contextmanager
    def serve(self, overrides: Overrides) -> Generator[Served]:
        with reserved_port() as port, CommandServer(self.words, overrides, port=port) as server:
            yield server

    def command(self, overrides: Overrides) -> str:
        return own_command(self.words, overrides)

    def start(self, facts: ServerFacts) -> Overrides:
        return _vllm_start(facts, VLLM_GPU)

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has:
        return Has(
            enable_prefix_caching=facts.enable_prefix_caching,
            async_scheduling=facts.async_scheduling,
            api_server_count=1,
            spare_cpus=spare_cpus,
        )


@dataclass(frozen=True, slots=True)
class Attached:
    """A server that somebody else has started, and that stays as it is."""

    url: str
    session: None = None

    @property
    def command(self) -> str:
        return self.url

    def check_alive(self) -> None:
        """Its requests would fail, and say so."""


@dataclass(frozen=True, slots=True)
class AddressTarget:
    """Measured and calibrated; never started, never stopped."""

    url: str

    restarts: bool = False
    start_s: float = 0.0

    @property
    def name(self) -> str:
        return self.url

    @property
    def identity(self) -> str:
        return f"address {self.url}"

    @contextmanager
    def serve(self, overrides: Overrides) -> Generator[Served]:
        if overrides:
            raise TargetFailed(f"{self.url} runs under its owner's settings; it is not restarted for others")
        yield Attached(self.url)

    def command(self, overrides: Overrides) -> str:
        return _some_vllm(overrides)

    def start(self, facts: ServerFacts) -> Overrides:
        return _vllm_start(facts, VLLM_GPU)

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has:
        del facts, spare_cpus
        return Has()  # nothing is switched on it


@dataclass(frozen=True, slots=True)
class TwinTarget:
    """No server: what a cost model says of one."""

    cost: str

    restarts: bool = True
    start_s: float = 0.0

    @property
    def name(self) -> str:
        return f"the twin of {self.cost}"

    @property
    def identity(self) -> str:
        return f"twin {self.cost}"

    def command(self, overrides: Overrides) -> str:
        return _some_vllm(overrides)

    def start(self, facts: ServerFacts) -> Overrides:
        return _vllm_start(facts, VLLM_GPU)

    def has(self, facts: ServerFacts, *, spare_cpus: int) -> Has:
        del facts, spare_cpus
        return Has()  # what the twin cannot know, it cannot be asked


Tunable = Startable | TwinTarget
"""One thing to tune."""


def _some_vllm(overrides: Overrides) -> str:
    """For whoever starts it; of which model, only they know."""
    return shlex.join(["vllm", "serve", "MODEL", *as_flags(overrides)])


def target_named(said: str | None, words: Sequence[str], vllm_folder: Path) -> Tunable | None:
    """None for the embedded engine, whose model is still to be found. Raises `BadInput`."""
    if is_command(words):
        if said not in {None, "vllm"}:
            raise BadInput(f"--target {said} and a command of your own are two things to tune")
        return CommandTarget(tuple(words))
    if said == "vllm":
        if words:
            raise BadInput(
                f"--target vllm serves the model in its folder, not {words[0]!r}",
                f"headrace tune -- vllm serve {words[0]} ...",
            )
        installation = VllmInstallation(vllm_folder)
        if not installation.exists:
            raise BadInput(
                f"there is no vLLM in {vllm_folder}",
                "`make vllm` installs one; or say how yours starts: headrace tune -- vllm serve MODEL ...",
            )
        return VllmTarget(installation)
    if said in {None, "embedded"}:
        return None
    if words:
        raise BadInput(f"--target {said} says what is tuned; {words[0]!r} is one thing too many")
    assert said is not None, "told apart above"
    if "://" in said or (":" in said and not Path(said).exists()):
        return AddressTarget(base_url(said))
    return TwinTarget(said)


def is_command(words: Sequence[str]) -> bool:
    """Whether the words start a server, instead of naming a model: they are several, as `vllm serve M`."""
    return len(words) > 1
