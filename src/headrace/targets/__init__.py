"""Starts, configures and stops what is measured."""
