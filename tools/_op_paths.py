"""`bench_ops.py --paths`: every way to multiply that this machine has, on all layers of a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from runtime.models._decoder import Decoder
from runtime.ops.linear_paths import rates_of
from runtime.ops.native import native_ops
from runtime.ops.native.paths import TILES, Paths
from runtime.ops.weights import PackedWeight


def path_rates(models: dict[str, Decoder], rows: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Of every kind of weight and path: milliseconds of the layers (the head left out), GFLOP/s,
    share of what the path's instruction can do, and whether `auto` takes it. Paths take turns."""
    kernels = native_ops()
    assert kernels is not None, "no native kernels here"
    for model in models.values():
        forms = [
            linear.form
            for layer in model.layers
            for linear in layer.linears().values()
            if isinstance(linear.form, PackedWeight)
        ]
        kind = forms[0].panels.kind
        rates = rates_of(kernels, kind, [form.panels.shape[1] for form in forms])
        taken = forms[0].paths.of(rows)
        xs = {n: torch.randn(rows, n).bfloat16() for n in {f.panels.shape[1] for f in forms}}
        times: dict[str, list[float]] = {path: [] for path in rates}
        for _ in range(repeats):
            for path, found in times.items():
                found.append(_ms(forms, xs, path))
        work = 2 * rows * sum(form.panels.shape[0] * form.panels.shape[1] for form in forms)
        for path, found in times.items():
            rate, unit = work / statistics.median(found) * 1e3, rates[path].unit
            yield {
                "kind": kind,
                "path": path,
                "ms": statistics.median(found),
                "gflop_per_s": rate / 1e9,
                "unit_gflop_per_s": unit and unit / 1e9,
                "share": unit and rate / unit,
                "taken": path == taken,
            }


def _ms(forms: list[PackedWeight], xs: dict[int, Tensor], path: str) -> float:
    """CPU time of all layers, divided by the threads."""
    before = forms[0].paths
    for form in forms:
        form.paths = Paths("float", 0) if path == TILES else Paths(path)
    begin = time.process_time()
    for form in forms:
        form.linear(xs[form.panels.shape[1]], None)
    took = (time.process_time() - begin) * 1e3 / torch.get_num_threads()
    for form in forms:
        form.paths = before
    return took
