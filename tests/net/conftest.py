"""One scripted server for all tests that leave it as they found it."""

from collections.abc import Generator

import pytest

from tests.net.serving import RunningServer, running, service


@pytest.fixture(scope="session")
def server() -> Generator[RunningServer, None, None]:
    with running(service()) as started:
        yield started
