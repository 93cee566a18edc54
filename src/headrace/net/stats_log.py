"""Every ten seconds in which there was work, one line: throughput, what runs, and what is waited for.

Through `logging`, from the HTTP process: the step loop knows nothing of it. No words of anybody's.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable

from headrace.net.metrics.log_line import Totals, log_line

PERIOD_S = 10.0

_log = logging.getLogger(__name__)


def log_to_stderr() -> None:
    """Let the lines be seen, as vLLM's are: `INFO 11-30 18:06:51 Engine 000: ...`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%m-%d %H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


async def log_stats(totals: Callable[[], Totals], period_s: float = PERIOD_S) -> None:
    """Until cancelled."""
    then, then_at = totals(), time.monotonic()
    while True:
        await asyncio.sleep(period_s)
        now, now_at = totals(), time.monotonic()
        line = log_line(then, now, now_at - then_at)
        if line is not None:
            _log.info("%s", line)
        then, then_at = now, now_at
