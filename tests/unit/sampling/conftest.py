from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.unit.sampling.helpers import ByteTokenizer


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
