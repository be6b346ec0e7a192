"""Borrowed tensors: same memory, same layout, no ownership."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphs._capture.memory import borrow, span_bytes

TENSORS = [
    torch.arange(24.0).view(4, 6),
    torch.arange(24).view(4, 6).t(),
    torch.arange(24, dtype=torch.bfloat16).view(4, 6)[1:3, 2:5],
    torch.arange(24.0, dtype=torch.float16)[::3],
    torch.tensor([True, False, True])[1:],
    torch.tensor(3.5),
    torch.ones(1).expand(5, 7),
    torch.empty(0, 5),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{tuple(t.shape)}-{t.dtype}")
def test_a_borrowed_tensor_is_the_same_memory(tensor: torch.Tensor) -> None:
    view = borrow(tensor)
    assert torch.equal(view, tensor)
    assert (view.stride(), view.dtype) == (tensor.stride(), tensor.dtype)
    if tensor.numel():
        assert view.data_ptr() == tensor.data_ptr()


def test_writes_go_through() -> None:
    tensor = torch.zeros(3, 4)
    borrow(tensor[:, 1]).fill_(7)
    assert tensor[:, 1].tolist() == [7, 7, 7]
    assert tensor.sum() == 21


def test_it_does_not_keep_the_memory() -> None:
    tensor = torch.zeros(1000)
    reference = StorageWeakRef(tensor.untyped_storage())
    view = borrow(tensor)
    del tensor
    assert reference.expired()
    del view


def test_span() -> None:
    assert span_bytes(torch.zeros(4, 6)) == 96
    assert span_bytes(torch.zeros(4, 6)[:, 0]) == (3 * 6 + 1) * 4
    assert span_bytes(torch.zeros(1).expand(9)) == 4
