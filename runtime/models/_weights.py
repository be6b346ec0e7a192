"""Filling a decoder's parameters: from a checkpoint by the declared map, or at random."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runtime.errors import ModelError
from runtime.models._checkpoint import Checkpoint
from runtime.models._weight_map import Slot

if TYPE_CHECKING:
    from runtime.models._decoder import Decoder

_STORED = (torch.float32, torch.bfloat16, torch.float16)
_RECOMPUTED = ("rotary_emb.inv_freq", "attention.masked_bias", "attn.masked_bias")
_TIED_HEAD = "lm_head.weight"
_log = logging.getLogger(__name__)


def fill_from_checkpoint(model: Decoder, checkpoint: Checkpoint) -> None:
    """Copy every tensor of the map into its slot, converting the type; Q8_0 is taken as it is.

    Raises:
        ModelError: a tensor is missing, unknown, of the wrong shape or of an unsupported type.
    """
    slots, targets = model.weight_map(), model.loaded
    _check_names(model, checkpoint, set(slots))
    for name, slot in slots.items():
        where = f"{checkpoint.folder}: tensor {name}"
        _copy(targets[slot.parameter], slot, checkpoint.tensor(name), where)
    if model.spec.tie_embeddings and _TIED_HEAD in checkpoint.names:
        _compare_tied_head(targets["embedding.weight"], checkpoint)


def fill_at_random(model: Decoder, seed: int) -> None:
    """Norms near 1, everything else normal with deviation 0.02 to 1/sqrt(in); the same each time.

    The values depend on the seed, the type and the device's generator.
    """
    parameters = model.parameters
    generator = torch.Generator(parameters["norm.weight"].device).manual_seed(seed)
    for name, parameter in parameters.items():
        is_norm = "norm" in name
        scale = 0.1 if is_norm else max(0.02, 1 / math.sqrt(parameter.shape[-1]))
        parameter.normal_(float(is_norm), scale, generator=generator)


def _check_names(model: Decoder, checkpoint: Checkpoint, wanted: set[str]) -> None:
    present = set(checkpoint.names)
    missing = sorted(wanted - present)
    if missing == [_TIED_HEAD]:
        raise ModelError(
            f"{checkpoint.folder}: the tensor {_TIED_HEAD} is missing, and the config does not tie "
            "it to the embedding; set tie_word_embeddings to true in config.json if it should be"
        )
    if missing:
        raise ModelError(f"{checkpoint.folder}: missing {_listed(missing)}")
    known = wanted | ({_TIED_HEAD} if model.spec.tie_embeddings else set())
    unknown = sorted(name for name in present - known if not name.endswith(_RECOMPUTED))
    if unknown:
        raise ModelError(
            f"{checkpoint.folder}: {model.spec.architecture} with this config.json has no place "
            f"for {_listed(unknown)}"
        )


def _compare_tied_head(embedding: Tensor, checkpoint: Checkpoint) -> None:
    stored = checkpoint.tensor(_TIED_HEAD).to(embedding)
    if not torch.equal(stored, embedding):
        _log.warning(
            "%s: the stored %s differs from the embedding and is ignored, since "
            "tie_word_embeddings is true in config.json",
            checkpoint.folder,
            _TIED_HEAD,
        )


def _copy(parameter: Tensor, slot: Slot, tensor: Tensor, where: str) -> None:
    target = parameter[slot.start : slot.start + slot.rows]
    expected = target.shape[1:] if slot.repeated else target.shape
    if tensor.shape != expected:
        raise ModelError(
            f"{where} has shape {list(tensor.shape)}; the config asks for {list(expected)}"
        )
    converts = tensor.dtype in _STORED and target.is_floating_point()
    if tensor.dtype is not target.dtype and not converts:
        stored = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(f"{where} is stored as {stored}; supported: float32, bfloat16, float16")
    target.copy_(tensor)
    if target.dtype is torch.float16 and target.isinf().any():
        raise ModelError(
            f"{where} has values beyond float16's range; set model.dtype to bfloat16 or float32"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    plural = "tensors" if len(names) > 1 else "tensor"
    return f"{len(names)} {plural}: {shown}" + (", ..." if len(names) > 5 else "")
