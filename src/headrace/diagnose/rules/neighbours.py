"""What the machine says of a server on it: other processes on its cores, and processes that are stopped.

A server computes as far as it is let. Only the machine tells that it is not: its own metrics show steps that
take longer, or none.
"""

from collections.abc import Iterator
from statistics import fmean

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import load_of
from headrace.diagnose.rules.queue import no_slot
from headrace.diagnose.rules.support import fact, span

OTHERS_SHARE = 0.25
"""Of the cores: less than that taken by others is what a machine always has to do beside."""
BUSY_SHARE = 0.9
"""Of the cores in use together: below it nobody is in anybody's way."""
KEPT_WAITING = 0.2
"""Threads of the server that are ready and not let run, on average: a fifth of a core is lost."""


def crowded_out(e: Evidence) -> Iterator[Finding]:
    """A thread that is ready and has no core waits for one, and the step waits for its slowest thread: the
    kernel counts that wait. Other processes are the reason where they use what the server would.
    """
    others, ours = (e.series(f"machine:cores_of_{who}") for who in ("others", "server"))
    cores, waited = e.number("machine:cores"), e.series("machine:threads_kept_waiting")
    if not (others and ours and waited and cores) or load_of(e).peak_running == 0:
        return
    taken, used, waits = fmean(others), fmean(ours), fmean(waited)
    if taken < OTHERS_SHARE * cores or taken + used < BUSY_SHARE * cores or waits < KEPT_WAITING:
        return
    names = ("machine:cores_of_others", "machine:cores_of_server", "machine:threads_kept_waiting")
    yield Finding(
        Label.CPU,
        f"Other processes take {taken:.1f} of {cores:.0f} cores; the server gets {used:.1f}, and at any time "
        f"{waits:.1f} of its threads wait for a core",
        (*(fact(e, name, span(e, name)) for name in names), fact(e, "machine:busiest_other")),
        Advice(
            "move the other processes elsewhere, or give the server cores of its own (taskset, a cpuset, "
            "Kubernetes' static CPU policy); no setting of the server gives it a core",
            "steps as short as on a machine of its own",
            "the others run somewhere else",
            "the second number of /proc/PID/schedstat stands still",
        ),
        Severity.WARNING,
        0.93,
        rivals=("more threads of the server itself than cores: see whether it waits without the others",),
        explains=_OF_LATE_STEPS - ({Label.QUEUEING} if any(no_slot(e)) else set()),
    )


_OF_LATE_STEPS = frozenset(
    {Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH, Label.EXPECTED}
)
"""But for a queue before slots that are all taken: that is short of slots, however long a step takes."""


def a_process_is_stopped(e: Evidence) -> Iterator[Finding]:
    """SIGSTOP, Ctrl-Z, a debugger or a frozen cgroup: the process keeps all it has, does nothing, and its
    gauges keep their last value.
    """
    seen = e.readings.get("machine:stopped")
    who = str(seen.values[-1]) if seen else ""
    if not who:
        return
    yield Finding(
        Label.STALL,
        f"A process of the server is stopped and computes nothing until it is let go on: {who}",
        (fact(e, "machine:stopped", f"state T: {who}"),),
        Advice(
            "kill -CONT with that process's number; then who stopped it: a debugger, Ctrl-Z, a checkpoint",
            "the same requests go on where they stood",
            "clients that gave up meanwhile are gone",
            "its state in ps is no longer T, and iteration_tokens_total_count grows",
        ),
        Severity.CRITICAL,
        0.98,
        explains=frozenset({Label.STALL, Label.QUEUEING, Label.COMPUTE, Label.CPU, Label.UNDETERMINED}),
    )


RULES = (crowded_out, a_process_is_stopped)
