"""docs/doctor.md says which rule rests on what mechanism, and it is what the rules say themselves."""

from tools import doctor_rules


def test_the_page_has_every_rule_with_its_mechanism() -> None:
    """It was kept by hand, and five rules and two rooms were not in it."""
    assert doctor_rules.main() == 0, "python tools/doctor_rules.py --write"
