"""Random load against a real server, faults included, and what must still hold. See `__main__`."""
