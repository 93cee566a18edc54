"""Sends a workload to a target on its timetable, records what happened, sums it up."""
