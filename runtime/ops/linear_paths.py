"""The kernels that packed weights are multiplied by on this machine, and what they do a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from attention_backends import NativeBuildError
from runtime.errors import ConfigError
from runtime.ops.native import NativeOps, native_ops
from runtime.ops.native.linear import PANEL
from runtime.ops.native.paths import TILES, Paths, choose_paths
from runtime.ops.native.rates import PathRates, measure


def kernel_problem(device: torch.device, dtype: torch.dtype, kinds: Sequence[str] = ()) -> str:
    """Why no native kernel multiplies packed weights here; empty where one does.

    Args:
        dtype: of activations.
        kinds: stored ones that there must be kernels for; they are compiled.
    """
    if device.type != "cpu":
        return f"they are for the CPU, the device is {device.type}"
    if dtype is not torch.bfloat16:
        return f"they are for bfloat16, the type is {str(dtype).removeprefix('torch.')}"
    kernels = native_ops()
    if kernels is None:
        return "they could not be built"
    try:
        for kind in kinds:
            kernels.of_kind(kind)
    except NativeBuildError as error:
        return str(error)
    return ""


def check_path(
    device: torch.device,
    dtype: torch.dtype,
    inputs: Mapping[str, Sequence[int]],
    wanted: str,
) -> None:
    """See that what `model.linear_path` names would multiply by some of the weights.

    Args:
        dtype: of the model.
        inputs: of the layers of each kind of weight.

    Raises:
        ConfigError: it would not.
    """
    if wanted == "auto":
        return
    problem = kernel_problem(device, dtype)
    kernels = None if problem else native_ops()
    if kernels is None:
        raise ConfigError(
            f"model.linear_path: {wanted} is a native kernel, and torch multiplies here: {problem}"
        )
    paths = dict.fromkeys(
        path for kind, widths in inputs.items() for path in rates_of(kernels, kind, widths)
    )
    if wanted not in paths:
        kinds = " and ".join(inputs)
        raise ConfigError(
            f"model.linear_path: {wanted} does not multiply by this model's weights ({kinds}) on "
            f"this CPU; allowed here: {', '.join(['auto', *paths])}"
        )


def rates_of(kernels: NativeOps, kind: str, inputs: Sequence[int]) -> dict[str, PathRates]:
    """Path -> its rates, of one kind of weight; see `measure`."""
    found = kernels.of_kind(kind)
    return measure(found.library, kind, inputs, found.unit.packed_bytes / found.unit.inputs / PANEL)


def paths_of(
    kernels: NativeOps, inputs: Mapping[str, Sequence[int]], wanted: str
) -> dict[str, Paths]:
    """Kind of weight -> which kernels multiply by it.

    Args:
        inputs: of the layers of each kind.
        wanted: see `choose_paths`.
    """
    return {
        kind: choose_paths(rates_of(kernels, kind, widths), wanted)
        for kind, widths in inputs.items()
    }


def path_facts(inputs: Mapping[str, Sequence[int]], wanted: str) -> Iterator[tuple[str, str]]:
    """(kind of weight and path, its rates by rows and whether it is taken), for people."""
    kernels = native_ops()
    if kernels is None:
        return
    for kind, widths in inputs.items():
        found = rates_of(kernels, kind, widths)
        chosen = choose_paths(found, wanted)
        for path, rates in found.items():
            cells = [f"{rate / 1e9:.0f} ({rows})" for rows, rate in rates.by_rows.items()]
            best = max(rates.by_rows.values())
            share = f"; unit {rates.unit / 1e9:.0f}, {best / rates.unit:.0%}" if rates.unit else ""
            rates_text = f"GFLOP/s (rows) {' '.join(cells)}{share}"
            yield f"{kind} {path}", f"{rates_text}{_where(path, chosen)}"


def _where(path: str, chosen: Paths) -> str:
    if path == TILES and chosen.tiles_from is not None:
        return f"; taken from {chosen.tiles_from} rows"
    if path != chosen.base:
        return ""
    return "; taken" if chosen.tiles_from is None else f"; taken below {chosen.tiles_from} rows"
