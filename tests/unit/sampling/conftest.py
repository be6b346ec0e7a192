from __future__ import annotations

import pytest

from tests.unit.sampling.helpers import ByteTokenizer


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="session")
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
