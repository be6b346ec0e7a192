"""A SchedulerOutput as bytes: for another process, or a file. MessagePack, no pickle: reading it
runs no code of the sender."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np

from runtime.data.step import SchedulerOutput

VERSION: Literal[1] = 1
"""Of the format; the first element."""
_DTYPES = ("|b1", "<i4", "<i8")


def encode_step(so: SchedulerOutput) -> bytes:
    """The step, with everything that `NewRow`s say of their requests.

    Raises:
        ValueError: a request has logits processors: functions stay in their process.
    """
    for new in so.new_rows:
        if new.params.logits_processors:
            raise ValueError(f"{new.request_id}: logits_processors cannot leave their process")
    return msgspec.msgpack.encode((VERSION, so), enc_hook=_encode_array)


def decode_step(data: bytes) -> SchedulerOutput:
    """What `encode_step` was given, its parameters validated again.

    Raises:
        ValueError: bytes that are cut, of another version, or no step at all.
        RequestError: parameters out of their range.
    """
    try:
        _, so = _decoder().decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"no step of format {VERSION}: {error}") from error
    return so


@cache
def _decoder() -> msgspec.msgpack.Decoder[tuple[int, SchedulerOutput]]:
    return msgspec.msgpack.Decoder(tuple[Literal[1], SchedulerOutput], dec_hook=_decode_array)


def _encode_array(value: object) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.str in _DTYPES:
        return value.dtype.str, value.tobytes()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _decode_array(wanted: type, value: Any) -> Any:
    dtype, data = value
    if dtype not in _DTYPES:
        raise ValueError(f"arrays of {dtype!r} are not sent")
    return np.frombuffer(data, dtype).copy()
