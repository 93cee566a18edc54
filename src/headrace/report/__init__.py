"""Renders measurements and trials for people and for programs."""
