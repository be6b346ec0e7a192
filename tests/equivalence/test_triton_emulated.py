"""Our Triton kernels inside captured graphs, without a GPU."""

import pytest

from tests.unit.attention_backends.test_triton_paged import needs_triton, run_aside


@needs_triton
@pytest.mark.slow
def test_triton_paged_under_emulated_capture():
    run_aside("../../equivalence/triton_emulated_cases.py", TRITON_INTERPRET="1")
