"""Drives engines over a workload in virtual time: the served decisions, on a modelled machine."""
