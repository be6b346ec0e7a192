"""What the tests of all backends need."""

from collections.abc import Iterator

import pytest

from attention_backends._kernel_library import open_library


@pytest.fixture(autouse=True)
def _libraries_are_opened_anew() -> Iterator[None]:
    """A test's fake library is not the next one's."""
    open_library.cache_clear()
    yield
    open_library.cache_clear()
