"""How hard the property tests try: `check` in the fast gate, `test` in the full one."""

from hypothesis import HealthCheck, settings

settings.register_profile("check", max_examples=15, deadline=None, derandomize=True)
settings.register_profile(
    "test", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("check")
