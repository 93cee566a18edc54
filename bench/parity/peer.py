"""A process of vLLM's own environment: started once, as vLLM takes long to import, and asked many times."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from headrace.core.versions import VLLM_VERSION
from tests.traces import Trace

ROOT = Path(__file__).parents[2]


class VllmProcess:
    """Runs a module that answers line by line. `folder` is what `make vllm` built.

    Another `version` than its own is imported from `folder/older`, over what was installed for 0.32.
    Raises `SystemExit` with what is missing, or with the log of a process that ended.
    """

    def __init__(self, folder: Path, module: str, version: str = VLLM_VERSION) -> None:
        python, model = folder / "bin" / "python", folder / "model"
        older = folder / "older" / version
        path = [str(ROOT), str(ROOT / "src")]
        for needed in (python, model / "config.json"):
            if not needed.exists():
                raise SystemExit(f"{needed} is missing: `make vllm` builds vLLM's environment")
        if version != VLLM_VERSION:
            if not (older / "vllm").exists():
                raise SystemExit(f"{older} is missing: `tools/vllm_older.sh {folder} {version}` fetches it")
            path.insert(0, str(older.absolute()))
        # Not a `with`: the log lives as long as the process that writes it.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [python.absolute(), "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(path),
                "HEADRACE_VLLM_MODEL": str(model.absolute()),
                "HF_HUB_OFFLINE": "1",
                "VLLM_LOGGING_LEVEL": "ERROR",
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(line.decode() + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line of the answer."""
        assert self._process.stdout is not None, "opened as a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"vLLM's process ended:\n{self._log.read()[-2000:]}")
        return line


class VllmScheduler(VllmProcess):
    """Plays traces on vLLM's scheduler."""

    def __init__(self, folder: Path, version: str = VLLM_VERSION) -> None:
        super().__init__(folder, "bench.parity.vllm_side", version)

    def ask(self, trace: Trace) -> None:
        """Start playing `trace`; `answer` waits for the end."""
        self.tell(msgspec.json.encode(trace))

    def answer(self) -> list[str]:
        """A digest for every step of the trace asked last."""
        return msgspec.json.decode(self.hear(), type=list[str])

    def play(self, trace: Trace) -> list[str]:
        self.ask(trace)
        return self.answer()


def whole(digests: Sequence[str]) -> str:
    """One digest for a whole trace, its length included."""
    return f"{len(digests)}:{blake2b(''.join(digests).encode(), digest_size=8).hexdigest()}"
