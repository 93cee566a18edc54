"""Carries out a plan: OpenVINO for real tokens, a script for tests. Knows models, not queues."""
