"""How near `headrace plan` comes to what vLLM itself logged when it started.

    logs of start-ups, public and our own --starts--> Start --compare--> Row(logged, ours, error, basis)

`python -m bench.plan --json`; the method is in docs/planning.md.
"""
