"""The engine of this package as a target: `headrace serve` in a child process.

    EmbeddedServer("smollm2", {"max_num_batched_tokens": 512})
      -> python -m headrace serve smollm2 --max-num-batched-tokens 512 --host 127.0.0.1 --port 0
      -> waits for "serving smollm2 at http://..." -> .url

Knows its command and its log; knows nothing of models, requests or measures.
"""

import re
import shlex
import sys
from collections.abc import Sequence

from headrace.core.ports import Overrides
from headrace.targets.flags import as_flags
from headrace.targets.process import Launch, ServerProcess

_SERVING = re.compile(rb"^serving .* at (http://\S+)\s*\n", re.MULTILINE)
_ERROR = re.compile(r"error|exception|killed|refused", re.IGNORECASE)


class EmbeddedServer(ServerProcess):
    """One `headrace serve` process, at a free port unless `port` names one."""

    def __init__(
        self,
        model: str,
        overrides: Overrides,
        *,
        port: int = 0,
        start_bound_s: float = 120.0,
        stop_bound_s: float = 10.0,
        program: Sequence[str] = (sys.executable, "-m", "headrace"),
    ) -> None:
        arguments = ["serve", model, *as_flags(overrides)]
        super().__init__(
            Launch(
                words=[*program, *arguments, "--host", "127.0.0.1", "--port", str(port)],
                shown=shlex.join(["headrace", *arguments]),
                ready=_address,
                why=_telling_line,
                start_bound_s=start_bound_s,
                stop_bound_s=stop_bound_s,
            )
        )


def _address(log_end: bytes) -> str | None:
    found = _SERVING.search(log_end)
    return None if found is None else found[1].decode()


def _telling_line(lines: Sequence[str]) -> str | None:
    """The line that says why: our own message, else the last that names an error."""
    said = [line.strip() for line in lines]
    ours = [line.removeprefix("headrace: ") for line in said if line.startswith("headrace: ")]
    errors = [line for line in said if _ERROR.search(line)]
    return next((group[-1] for group in (ours, errors) if group), None)
