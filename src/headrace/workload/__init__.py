"""Which requests arrive, and when: seeded, so that a run can be had again."""
