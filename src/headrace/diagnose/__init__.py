"""Turns flags, metrics, logs and measurements into findings."""
