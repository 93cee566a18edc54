"""Our load generator beside its peers': one server, the same load, what each says of it and what that costs.

    Peer.command -> a process, its CPU time -> Peer.read -> Seen(ttft, itl, answered)

The load is an open loop of constant gaps, which is the only one that all of them have: the scripted server of
`server.py`, which knows the truth, or any other. Each peer runs twice a round, with few requests and with
many: what the many took more of CPU time is what a request takes; the rest is starting up.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FEW, MANY = 100, 400
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
TOKENIZER = Path(".vllm/model")
LIMIT_S = 300.0
PRINTED = "printed"
"""Where a peer's output goes, in the folder of its results."""
_ERROR_LINES = 15


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the server at `url`."""

    url: str
    model: str
    rate: float
    requests: int


@dataclass(frozen=True, slots=True)
class Latency:
    """In milliseconds, as the peer says it."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What one peer says of one run."""

    answered: int
    ttft: Latency
    itl: Latency
    """Of all gaps by ours and vLLM's, of means by request by guidellm's and aiperf's."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A load tester: how it is started, and where it leaves what it found."""

    name: str
    program: Path | None
    """None where it is not installed."""
    command: Callable[[Load, Path], Sequence[str]]
    """Its arguments; the folder is for its results, and has what it printed."""
    read: Callable[[Path], Seen]


@dataclass(frozen=True, slots=True)
class Run:
    seen: Seen
    cpu_s: float
    """Of its process and of those that it started and waited for."""
    wall_s: float


def peers() -> tuple[Peer, ...]:
    """Ours first."""
    return (
        Peer("headrace", Path(sys.executable), _ours, _read_ours),
        Peer("vllm bench serve", _installed("vllm"), _vllm, _read_vllm),
        Peer("guidellm", _installed("guidellm"), _guidellm, _read_guidellm),
        Peer("aiperf", _installed("aiperf"), _aiperf, _read_aiperf),
    )


def run(peer: Peer, load: Load) -> Run:
    """Raises `RuntimeError` with the end of what it printed where it fails."""
    assert peer.program is not None, "who is not installed is not run"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before_s, began = _children_cpu_s(), time.monotonic()
        with (folder / PRINTED).open("wb") as output:
            ended = subprocess.run(
                [str(peer.program), *peer.command(load, folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        wall_s, cpu_s = time.monotonic() - began, _children_cpu_s() - before_s
        try:
            return Run(peer.read(folder), cpu_s, wall_s)
        except (OSError, ValueError, LookupError, StopIteration, TypeError) as error:
            printed = (folder / PRINTED).read_text(errors="replace").splitlines()[-_ERROR_LINES:]
            raise RuntimeError(
                f"{peer.name} left with {ended.returncode}: {error!r}\n" + "\n".join(printed)
            ) from error


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _installed(name: str) -> Path | None:
    """In an environment of its own beside ours, or on the path."""
    own = Path(f".{name}", "bin", name).absolute()
    found = str(own) if own.exists() else shutil.which(name)
    return Path(found) if found else None


def _ours(load: Load, _folder: Path) -> Sequence[str]:
    tokens = ("--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    many = ("--requests", str(load.requests), "--duration", f"{load.requests / load.rate + 1:g}")
    plain = ("--warm-up", "0", "--alone", "0", "--json")
    arrivals = ("--rate", f"{load.rate:g}", "--arrivals", "constant")
    return ("-m", "headrace", "bench", load.url, "--model", load.model, *arrivals, *tokens, *many, *plain)


def _read_ours(folder: Path) -> Seen:
    said = json.loads((folder / PRINTED).read_text().splitlines()[-1])["classes"]["all"]
    ttft, itl = (
        Latency(*(1e3 * said[name][each] for each in ("mean", "p50", "p99"))) for name in ("ttft_s", "itl_s")
    )
    return Seen(said["requests"] - said["failed"], ttft, itl)


def _vllm(load: Load, folder: Path) -> Sequence[str]:
    return (
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", load.url, "--model", load.model, "--tokenizer", str(TOKENIZER.absolute())),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(load.requests), "--ignore-eos"),
        # Its gaps are gamma distributed: of this shape they are all alike.
        *("--request-rate", f"{load.rate:g}", "--burstiness", "1000000", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"),
    )


def _read_vllm(folder: Path) -> Seen:
    said = json.loads((folder / "vllm.json").read_text())
    ttft, itl = (
        Latency(*(said[f"{each}_{name}_ms"] for each in ("mean", "median", "p99")))
        for name in ("ttft", "itl")
    )
    return Seen(said["completed"], ttft, itl)


def _guidellm(load: Load, folder: Path) -> Sequence[str]:
    return (
        *("run", "--backend", f"kind=openai_http,target={load.url},model={load.model}"),
        *("--tokenizer", f"kind=hf_auto,model={TOKENIZER.absolute()}"),
        *("--profile", f"kind=constant,rate={load.rate:g}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
    )


def _read_guidellm(folder: Path) -> Seen:
    said = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]

    def latency(name: str) -> Latency:
        told = said[name]["successful"]
        return Latency(told["mean"], told["median"], told["percentiles"]["p99"])

    ttft, itl = latency("time_to_first_token_ms"), latency("inter_token_latency_ms")
    return Seen(said["request_totals"]["successful"], ttft, itl)


def _aiperf(load: Load, folder: Path) -> Sequence[str]:
    return (
        *("profile", "--model", load.model, "--url", load.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(TOKENIZER.absolute()), "--request-rate", f"{load.rate:g}"),
        *("--request-rate-mode", "constant", "--request-count", str(load.requests)),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(OUTPUT_TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(folder)),
    )


def _read_aiperf(folder: Path) -> Seen:
    said = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())

    def latency(name: str) -> Latency:
        return Latency(*(said[name][each] for each in ("avg", "p50", "p99")))

    ttft, itl = latency("time_to_first_token"), latency("inter_token_latency")
    return Seen(int(said["request_count"]["avg"]), ttft, itl)
