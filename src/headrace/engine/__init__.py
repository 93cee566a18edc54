"""One replica's state machine: submit, cancel, plan, finish. It is told the time and never asks it."""
