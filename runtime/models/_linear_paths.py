"""What the kernels of linear layers are chosen for: the matrices of a described model."""

from __future__ import annotations

import torch

from runtime.models._loaded import torch_dtype
from runtime.models._spec import ModelSpec
from runtime.models._weight_map import is_matrix, parameter_shapes
from runtime.ops import check_path


def matrix_inputs(spec: ModelSpec) -> dict[str, list[int]]:
    """Kind of weight -> inputs of each matrix, where native kernels multiply."""
    inputs: dict[str, list[int]] = {}
    for name, shape in parameter_shapes(spec).items():
        if is_matrix(name):
            plain = "int8" if spec.quantization == "int8" else "bfloat16"
            kinds = {part.kind for part in spec.stored.get(name, ())}
            for kind in kinds or {"q8_0" if name in spec.q8_0 else plain}:
                inputs.setdefault(kind, []).append(shape[1])
    return inputs


def check_linear_path(spec: ModelSpec, device: torch.device) -> None:
    """Raises:
    ConfigError: `model.linear_path` names one that multiplies by none of the model's weights here.
    """
    check_path(device, torch_dtype(spec), matrix_inputs(spec), spec.linear_path)
