import re

import pytest

from attention_backends import backend_names, examine_all
from runtime.errors import BackendError
from runtime.runner import choose_backend
from tests.unit.attention_backends.reference import make_shape
from tests.unit.runner.helpers import CPU


def test_an_unknown_backend_is_an_error_of_the_runtime():
    with pytest.raises(BackendError, match="did you mean 'torch_paged'"):
        choose_backend("torch-paged", [make_shape()], 16, CPU)


@pytest.mark.case("AT13")
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("name", backend_names())
def test_each_backend_serves_a_block_size_or_refuses_it_before_any_forward(name, block_size):
    shapes = [make_shape()]
    support = examine_all(shapes, block_size, CPU)[name]
    if support.ok:
        choice = choose_backend(name, shapes, block_size, CPU)
        assert choice.block_size == block_size
        choice.backend(shapes, block_size, CPU)
    else:
        with pytest.raises(BackendError, match=re.escape(f"  {name}: {support.reason}")):
            choose_backend(name, shapes, block_size, CPU)
