"""Real vLLM as a target: `vllm serve` in a child process.

    VllmServer(VllmInstallation(Path(".vllm")), {"max_num_seqs": 16}, port=4711)        on this machine's CPU
      -> vllm serve .vllm/model --dtype float32 --enforce-eager ... --max-num-seqs 16 --port 4711
    CommandServer(["vllm", "serve", "M", "--max-num-seqs", "64"], {"max_num_seqs": 16}, port=4711)
      -> vllm serve M --max-num-seqs 16 ... --port 4711
      -> waits for "Application startup complete." -> .url

Knows vLLM's command, environment and log; knows nothing of requests or measures. It runs three
processes (HTTP, engine, worker) in one group, so all of them go when it is stopped.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags, value_in, with_settings
from headrace.targets.process import Launch, ServerProcess

SERVED_NAME = "smollm2"
_TELLS_ALL = {"VLLM_SERVER_DEV_MODE": "1"}
"""Its whole configuration at /server_info; and prefixes can be forgotten."""
_KV_SPACE, _KV_BYTES = "VLLM_CPU_KVCACHE_SPACE", "kv_cache_memory_bytes"
"""On a CPU the variable has the last word, unless it is empty."""
_READY = b"Application startup complete."
_CPU = ("--dtype", "float32", "--enforce-eager")
"""Without float32 it emulates bfloat16, ten times slower and, on AVX2, wrong."""
_PREFIX = re.compile(r"^\(\w+ pid=\d+\)\s*|^(ERROR|INFO|WARNING) [\d-]+ [\d:]+ \[[\w.]+:\d+\]\s*")
_VALUE_ERROR = re.compile(r"Value error, (.+?)(?: \[type=|$)")
_USAGE = re.compile(r"^(?:vllm serve|vllm|api_server\.py): error: (.+)")
_ERROR = re.compile(r"^(?:[\w.]+\.)?(?:\w*Error|\w*Exception): \S.*|.*\b(?:Killed|out of memory)\b.*")
_REPORTED = re.compile(r"\bERROR [\d-]+ [\d:]+ \[[\w.]+:\d+\] \S|^Fatal Python error: |^terminate called ")
_AFTERMATH = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError")


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """A folder that `make vllm` has made."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "vllm"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def exists(self) -> bool:
        return self.program.exists() and (self.model / "config.json").exists()


class VllmServer(ServerProcess):
    """One `vllm serve`. The caller chooses `port`: vLLM does not say which one it was given.

    `kv_cache_gib` is the memory of its KV cache. It is healthy some 50 s after its start.
    """

    def __init__(
        self,
        installation: VllmInstallation,
        overrides: Overrides,
        *,
        port: int,
        kv_cache_gib: int = 1,
        start_bound_s: float = 300.0,
        stop_bound_s: float = 20.0,
    ) -> None:
        environment = {
            _KV_SPACE: "" if _KV_BYTES in overrides else str(kv_cache_gib),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **_TELLS_ALL,
        }
        words = [
            *(str(installation.program), "serve", str(installation.model)),
            *_CPU,
            *("--served-model-name", SERVED_NAME, "--enable-prompt-tokens-details"),
            *as_flags(overrides),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
        super().__init__(
            Launch(
                words=words,
                shown=" ".join(
                    [*(f"{name}={value}" for name, value in environment.items()), shlex.join(words)]
                ),
                ready=lambda log_end: f"http://127.0.0.1:{port}" if _READY in log_end else None,
                why=telling_line,
                environment=environment,
                start_bound_s=start_bound_s,
                stop_bound_s=stop_bound_s,
            )
        )


def command_of(installation: VllmInstallation, overrides: Overrides, kv_cache_gib: int = 1) -> str:
    """What a person types to serve its model with those settings, without what only a trial needs."""
    words = [str(installation.program), "serve", str(installation.model), *_CPU, *as_flags(overrides)]
    space = "" if _KV_BYTES in overrides else f"{_KV_SPACE}={kv_cache_gib} "
    return space + shlex.join(words)


class CommandServer(ServerProcess):
    """One server that starts by a person's own words, as `vllm serve MODEL --max-num-seqs 64`.

    They may be any command that takes vLLM's flags at its end and shows vLLM's log. `port` counts where
    they name none.
    """

    def __init__(
        self,
        words: Sequence[str],
        overrides: Overrides,
        *,
        port: int,
        start_bound_s: float = 1200.0,
        stop_bound_s: float = 60.0,
    ) -> None:
        port = int(value_in(words, "port") or port)
        named = value_in(words, "host") or "127.0.0.1"
        where: Overrides = {
            "host": named,
            "port": port,
            "uvicorn_log_level": "info",
        }  # else it never says that it is up
        host = "127.0.0.1" if named.strip("0.:") == "" else named  # 0.0.0.0 and :: are every address
        super().__init__(
            Launch(
                words=with_settings(with_settings(words, overrides), where),
                shown=own_command(words, overrides),
                ready=lambda log_end: f"http://{host}:{port}" if _READY in log_end else None,
                why=telling_line,
                environment={**_TELLS_ALL, **({_KV_SPACE: ""} if _KV_BYTES in overrides else {})},
                start_bound_s=start_bound_s,
                stop_bound_s=stop_bound_s,
            )
        )


def own_command(words: Sequence[str], overrides: Overrides) -> str:
    """As its owner would type it with those settings."""
    return shlex.join(with_settings(words, overrides))


def telling_line(lines: Sequence[str]) -> str | None:
    """The line of vLLM's log that says why it gave up, in its words. None where none does: who is killed says
    nothing, and the last line is what it was doing then.

    The cause comes first and in another process: what follows it (`Engine core initialization failed`)
    only says that there was one.
    """
    said = [_bare(line) for line in lines]
    refused = [found[1] for line in said if (found := _VALUE_ERROR.search(line) or _USAGE.search(line))]
    errors = [line for line in said if _ERROR.match(line)]
    causes = [line for line in errors if not _AFTERMATH.search(line)]
    reported = [_bare(line) for line in lines if _REPORTED.search(line)]
    return next((group[-1] for group in (refused, causes, errors, reported) if group), None)


def _bare(line: str) -> str:
    """Without the process, the level and the place that vLLM writes ahead of each line."""
    bare, before = line.strip(), ""
    while bare != before:
        before, bare = bare, _PREFIX.sub("", bare)
    return bare.strip()
