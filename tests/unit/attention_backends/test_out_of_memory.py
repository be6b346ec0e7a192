import errno
import mmap

import numpy as np
import pytest
import torch

from attention_backends import is_out_of_memory

FAR_TOO_MUCH = 1 << 60


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(FAR_TOO_MUCH, dtype=torch.uint8),
        lambda: np.zeros(FAR_TOO_MUCH, np.uint8),
        lambda: mmap.mmap(-1, FAR_TOO_MUCH),
    ],
    ids=["torch", "numpy", "mmap"],
)
def test_the_allocators_of_this_machine(allocate):
    with pytest.raises((RuntimeError, MemoryError, OSError)) as raised:
        allocate()
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("unable to mmap 9 bytes from file <f>: Cannot allocate memory (12)"),
    ],
)
def test_those_of_a_gpu_and_of_files(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        ValueError("out of memory"),
        OSError(errno.ENOENT, "no such file"),
    ],
)
def test_other_errors(error):
    assert not is_out_of_memory(error)
