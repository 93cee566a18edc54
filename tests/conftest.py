"""How hard the property tests try.

`check` in the fast gate and `test` in the full one draw the same examples every time: a gate that
fails by the draw refuses work that changed nothing. `explore` (`make explore`) draws new ones, many.
"""

from hypothesis import HealthCheck, settings

TOO_SLOW = [HealthCheck.too_slow]

settings.register_profile("check", max_examples=15, deadline=None, derandomize=True)
settings.register_profile(
    "test", max_examples=150, deadline=None, derandomize=True, suppress_health_check=TOO_SLOW
)
settings.register_profile("explore", max_examples=600, deadline=None, suppress_health_check=TOO_SLOW)
settings.load_profile("check")
