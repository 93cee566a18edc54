"""What `/metrics` and the periodic log line say.

series      numbers that cost next to nothing to change, and their way into Prometheus' text
metrics     what happens to a request or in a step, and which numbers it changes
of_engine, of_requests, of_budgets, of_http     the numbers: names, labels, edges, meaning
log_line    the same for a person, every ten seconds
"""
