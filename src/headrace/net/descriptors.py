"""Each connection takes a file descriptor, and the usual soft limit of 1024 is far below what we may take."""

import resource

MOST_DESCRIPTORS = 65_536


def allow_many_connections() -> None:
    """Raise the soft limit as far as the hard one lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
