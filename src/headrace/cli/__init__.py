"""The front door, and the only place where all parts are put together."""
