"""Headrace: serve, measure, explain and tune LLM inference. Serving is spending budgets."""

__version__ = "0.1.0"
