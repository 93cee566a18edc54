"""What others take of the machine: seen where it is told, and never ours."""

import subprocess
import sys
import time

import pytest

from headrace.measure.neighbours import Neighbours, machine_cpu_s, undisturbed

linux_only = pytest.mark.skipif(machine_cpu_s() is None, reason="the system does not count processors' time")


def test_a_span_is_disturbed_by_what_was_used_in_it_and_only_then() -> None:
    marks = [(0.0, 0.0), (1.0, 0.02), (2.0, 0.82), (3.0, 0.85)]
    assert undisturbed(marks) == [True, False, True]


def test_spans_shorter_than_a_tick_can_tell_are_judged_with_those_around_them() -> None:
    """A step takes 12 ms and a tick 10: by itself every third quiet step would look disturbed, or none."""
    quiet = [(0.012 * place, 0.01 * (place >= 25)) for place in range(50)]
    assert all(undisturbed(quiet))
    busy = [(0.012 * place, 0.01 * max(0, place - 25)) for place in range(50)]
    verdict = undisturbed(busy)
    assert all(verdict[:10])
    assert not any(verdict[25:])


def test_where_nobody_counts_nothing_is_thrown_away() -> None:
    assert undisturbed([(0.0, 0.0), (1.0, 0.0), (5.0, 0.0)]) == [True, True]


BUSY = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


@linux_only
@pytest.mark.slow
@pytest.mark.alone
def test_a_process_of_ours_is_no_neighbour_and_any_other_is() -> None:
    """Counted while it still runs, as a server's is: afterwards its time is nobody's."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY + "\ninput()"], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        began_at = time.monotonic()
        with_it, without_it = Neighbours([child.pid]), Neighbours()
        time.sleep(1.0)
        ours, others = with_it.cores(), without_it.cores()
        over_s = time.monotonic() - began_at
        child.kill()
    assert ours is not None
    assert others is not None
    assert others - ours == pytest.approx(0.4 / over_s, rel=0.5)
