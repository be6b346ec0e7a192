"""The choice of an attention backend, with the runtime's errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import attention_backends
from attention_backends import AttentionShape, BackendChoiceError, Choice
from runtime.errors import BackendError

if TYPE_CHECKING:
    from runtime.config import AttentionConfig


def choose_backends(
    config: AttentionConfig,
    shapes: Sequence[AttentionShape],
    block_size: int | None,
    device: torch.device,
) -> Choice:
    """The backend of `config.attention`: one, or a pair of which each serves its kind of step.

    Raises:
        BackendError: as `choose_backend`; or the two cannot share a KV cache, with the reason.
    """
    prefill = config.prefill_backend or config.backend
    decode = config.decode_backend or config.backend
    if prefill == decode:
        return choose_backend(prefill, shapes, block_size, device)
    try:
        return attention_backends.choose_pair(prefill, decode, shapes, block_size, device)
    except BackendChoiceError as error:
        raise BackendError(str(error)) from None


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
