"""The built-in model, loaded once for all tests that need it."""

import pytest

from headrace.executor.models import ModelFiles, locate
from headrace.executor.paged import PagedExecutor, load
from headrace.executor.tokenizer import OpenVinoTokenizer


@pytest.fixture(scope="session")
def files() -> ModelFiles:
    return locate("smollm2")


@pytest.fixture(scope="session")
def tokenizer(files: ModelFiles) -> OpenVinoTokenizer:
    return OpenVinoTokenizer(files)


@pytest.fixture(scope="session")
def paged(files: ModelFiles) -> PagedExecutor:
    return PagedExecutor(load(files), num_blocks=1200)
