"""Reads what servers say of themselves in Prometheus's text format."""
