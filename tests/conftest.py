"""How hard the property tests try.

`check` in the fast gate and `test` in the full one draw the same examples every time: a gate that
fails by the draw refuses work that changed nothing. `explore` (`make explore`) draws new ones, many.
"""

import pytest
from hypothesis import HealthCheck, settings

TOO_SLOW = [HealthCheck.too_slow]

settings.register_profile("check", max_examples=15, deadline=None, derandomize=True)
settings.register_profile(
    "test", max_examples=100, deadline=None, derandomize=True, suppress_health_check=TOO_SLOW
)
settings.register_profile("explore", max_examples=600, deadline=None, suppress_health_check=TOO_SLOW)
settings.load_profile("check")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A slow test that fails is run once more, and the summary says so (`R`).

    They start servers and wait on real clocks, on machines that others share: of 600 one or two fail
    where others are at work, seldom the same. What is broken fails twice; a fast test has no second chance.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))
