"""Both targets over a server that only pretends, so that a test can make it fall, stall or be stubborn."""

import sys
from collections.abc import Callable
from pathlib import Path

from headrace.core.ports import Overrides
from headrace.targets.embedded import EmbeddedServer
from headrace.targets.process import ServerProcess
from headrace.targets.vllm import VllmInstallation, VllmServer

PRETEND = Path(__file__).with_name("pretend_server.py")
PORT = 4711

Pretend = Callable[..., ServerProcess]
"""(how, overrides=None, **bounds) -> a target whose server behaves as `how` says."""


def embedded(how: str, overrides: Overrides | None = None, **bounds: float) -> EmbeddedServer:
    return EmbeddedServer(how, overrides or {}, port=0, program=(sys.executable, str(PRETEND)), **bounds)


def vllm_in(folder: Path) -> Pretend:
    """In an installation whose `vllm` is the pretender."""
    installation = VllmInstallation(folder)
    installation.model.mkdir()
    (installation.model / "config.json").write_text("{}")
    installation.program.parent.mkdir()
    installation.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PRETEND}" "$@"\n')
    installation.program.chmod(0o755)

    def start(
        how: str,
        overrides: Overrides | None = None,
        *,
        start_bound_s: float = 120.0,
        stop_bound_s: float = 10.0,
    ) -> VllmServer:
        settings = {"how": how, **(overrides or {})}
        return VllmServer(
            installation, settings, port=PORT, start_bound_s=start_bound_s, stop_bound_s=stop_bound_s
        )

    return start
