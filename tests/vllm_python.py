"""vLLM's own code as the judge: scripts that its Python runs, in an environment where ours is not."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

VLLM = Path(__file__).parents[1] / ".vllm" / "bin" / "python"
WITHIN_S = 800
"""vLLM alone takes up to a minute to import, and the machine may have other work."""

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM.exists(), reason="no vLLM here: make vllm"),
    pytest.mark.timeout(WITHIN_S + 100),
]


def vllm_says(script: Path, asked: Any) -> Any:
    """What `script` makes of `asked`: JSON on its stdin, and on the last line of its stdout."""
    ran = subprocess.run(
        [VLLM, "-P", script],  # without the script's folder: tests/net/http.py would hide http
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": "", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])
