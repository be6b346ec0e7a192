"""The choice of an attention backend, with the runtime's errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import attention_backends
from attention_backends import AttentionShape, BackendChoiceError, Choice
from runtime.errors import BackendError


def choose_backend(
    name: str, shapes: Sequence[AttentionShape], block_size: int | None, device: torch.device
) -> Choice:
    """See `attention_backends.choose_backend`.

    Raises:
        BackendError: an unknown backend, or one that cannot serve the model here.
    """
    try:
        return attention_backends.choose_backend(name, shapes, block_size, device)
    except BackendChoiceError as error:
        raise BackendError(str(error)) from None
