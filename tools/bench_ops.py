#!/usr/bin/env python3
"""Where the time of a forward goes, op by op: native kernels beside their twins in plain torch.

usage: bench_ops.py MODEL [--rows 1 32 2048] [--threads 1] [--repeats 9] [--paths] [--json FILE]

Every op runs in the model's sizes, over all layers, so that weights come from memory; attention is
left out. Milliseconds a step, medians of the process's CPU time divided by the threads; the two
alternate. `oneDNN` is torch's linear over packed weights (mkldnn._reorder_linear_weight). The floor
is the bytes of the weights over the rate at which a sum reads memory, measured here, as is the rate
of a float32 product out of the cache. `q8_0`, of a GGUF file only: every matrix in Q8_0, written
for the occasion. `--paths`: nothing but the layers, by every way to multiply that this machine has,
beside what that way's instruction can do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attention_backends import LayerKV
from runtime.config import resolve_model_path
from runtime.config.sections import ModelConfig
from runtime.models import load_model, weight_bytes
from runtime.models._decoder import Decoder
from runtime.ops import activation, dispatch, kv_write, norm, rotary, scores
from tools._op_paths import path_rates
from tools.quantization_drift import write_q8_0

BLOCK_SIZE = 16
Call = Callable[[], object]


class Ops:
    """One model's ops as calls without arguments, native and twin."""

    def __init__(self, model: str, num_rows: int) -> None:
        path = resolve_model_path(model)
        self.models = {
            "bf16": _load(path, "none"),
            "int8": _load(path, "int8"),
        }
        if path.endswith(".gguf"):
            with tempfile.TemporaryDirectory() as folder:
                quantized = Path(folder) / "q8_0.gguf"
                write_q8_0(Path(path), quantized)
                self.models["q8_0"] = _load(str(quantized), "q8_0", folder)
        self.spec = self.models["bf16"].spec
        self.num_rows = num_rows
        self.weight_bytes = {name: weight_bytes(m.spec) for name, m in self.models.items()}

    def calls(self) -> dict[str, tuple[Call, Call | None]]:
        """Op -> native, twin."""
        spec, rows = self.spec, self.num_rows
        hidden, inner = (
            self._random(rows, spec.hidden_size),
            self._random(rows, 2 * spec.intermediate_size),
        )
        weight, heads = self._random(spec.hidden_size), spec.num_q_heads + spec.num_kv_heads
        qkv = self._random(rows, heads + spec.num_kv_heads, spec.head_dim)
        positions = torch.arange(rows)
        frequencies = self.models["bf16"].inverse_frequencies
        turn = rotary.rotation(positions, frequencies, 1.0, torch.bfloat16)
        num_blocks = rows // BLOCK_SIZE + 3
        cache = [
            self._random(num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim) for _ in range(2)
        ]
        kv, slots = LayerKV(*cache), positions + 2 * BLOCK_SIZE
        k, v = qkv[:, spec.num_q_heads : heads], qkv[:, heads:]
        ids = torch.randint(0, spec.vocab_size, (rows,))
        logits = self._random(min(rows, 64), spec.vocab_size)
        table = self.models["bf16"].head.form.plain()
        layers = range(spec.num_layers)

        def each(function: Callable[..., object], *args: object, times: int = 1) -> Call:
            return lambda: [function(*args) for _ in layers for _ in range(times)]

        eight_bits = [name for name in ("int8", "q8_0") if name in self.models]
        return {
            "linear bf16": (self._linears("bf16", hidden), self._packed_linears(hidden)),
            **{f"linear {name}": (self._linears(name, hidden), None) for name in eight_bits},
            "residual + norm": (
                each(dispatch.add_rms_norm, hidden, hidden.clone(), weight, 1e-5, times=2),
                each(norm.add_rms_norm, hidden, hidden.clone(), weight, 1e-5, times=2),
            ),
            "rotary": (
                each(dispatch.norm_and_rotary, qkv[:, :heads], turn, None, 1e-5),
                each(rotary.norm_and_rotary, qkv[:, :heads], turn, None, 1e-5),
            ),
            "write K/V": (
                each(dispatch.write_kv, k, v, kv, slots),
                each(kv_write.write_kv, k, v, kv, slots),
            ),
            "silu * up (fused above)": (
                each(dispatch.silu_and_mul, inner),
                each(activation.silu_and_mul, inner),
            ),
            "embedding": (
                lambda: self.models["bf16"].embedding(ids),
                lambda: torch.nn.functional.embedding(ids, table),
            ),
            "argmax": (lambda: dispatch.argmax(logits), lambda: scores.argmax(logits)),
            "top-k 40": (lambda: dispatch.top_k(logits, 40), lambda: torch.topk(logits, 40)),
        }

    def _linears(self, form: str, hidden: Tensor) -> Call:
        model, inputs = self.models[form], self._inputs(hidden)

        def run() -> None:
            for layer in model.layers:
                for name, linear in layer.linears().items():
                    linear(inputs[name])
            model.compute_logits(hidden[:64])

        return run

    def _packed_linears(self, hidden: Tensor) -> Call:
        model, inputs = self.models["bf16"], self._inputs(hidden)
        pack = torch.ops.mkldnn._reorder_linear_weight
        packed = [
            (inputs[name], pack(linear.form.plain(), len(hidden)))
            for layer in model.layers
            for name, linear in layer.linears().items()
        ]
        packed.append((hidden[:64], pack(model.head.form.plain(), len(hidden[:64]))))

        def run() -> None:
            for x, weight in packed:
                torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

        return run

    def _inputs(self, hidden: Tensor) -> dict[str, Tensor]:
        attention = self._random(len(hidden), self.spec.num_q_heads * self.spec.head_dim)
        inner = self._random(len(hidden), self.spec.intermediate_size)
        return {"qkv": hidden, "output": attention, "gate_up": hidden, "down": inner}

    @staticmethod
    def _random(*shape: int) -> Tensor:
        return torch.randn(*shape).bfloat16()


def _load(path: str, quantization: str, cache_dir: str | None = None) -> Decoder:
    config = ModelConfig(
        path=path, dtype="bfloat16", quantization=quantization, cache_dir=cache_dir
    )
    return load_model(config, torch.device("cpu")).model


def median_ms(call: Call, other: Call | None, repeats: int) -> tuple[float, float | None]:
    """Of both, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, found in zip((call, other), times, strict=True):
            if function is not None:
                begin = time.process_time()
                function()
                found.append((time.process_time() - begin) * 1e3 / torch.get_num_threads())
    return statistics.median(times[0]), statistics.median(times[1]) if times[1] else None


def read_rate(repeats: int) -> float:
    """Bytes a second of a sum over 512 MiB."""
    memory = torch.ones(64 << 20, dtype=torch.int64)
    return memory.nbytes / (median_ms(memory.sum, None, repeats)[0] / 1e3)


def product_rate(repeats: int) -> float:
    """Operations a second of a float32 product of two matrices of 768 x 768."""
    size = 768
    square = torch.ones(size, size)
    return 2 * size**3 / (median_ms(lambda: square @ square, None, repeats)[0] / 1e3)


def _path_table(rows: int, found: list[dict[str, Any]]) -> Table:
    table = Table("weights", "path", "ms", "GFLOP/s", "unit", "share", "auto", title=f"{rows} rows")
    for row in found:
        unit = row["unit_gflop_per_s"]
        cells = (f"{unit:.0f}", f"{row['share']:.0%}") if unit else ("", "")
        name, ms, rate = row["path"], f"{row['ms']:.2f}", f"{row['gflop_per_s']:.1f}"
        table.add_row(row["kind"], name, ms, rate, *cells, "taken" if row["taken"] else "")
    return table


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--paths", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rate = read_rate(options.repeats)
    product = product_rate(options.repeats)
    console, found = Console(), {"threads": options.threads, "read_gb_per_s": rate / 1e9, "ms": {}}
    found["float32_product_gflop_per_s"] = product / 1e9
    console.print(f"reading {rate / 1e9:.1f} GB/s, float32 products {product / 1e9:.0f} GFLOP/s")
    for rows in options.rows if options.paths else ():
        models = Ops(options.model, rows).models
        found.setdefault("paths", {})[rows] = list(path_rates(models, rows, options.repeats))
        console.print(_path_table(rows, found["paths"][rows]))
    for rows in () if options.paths else options.rows:
        ops = Ops(options.model, rows)
        floors = ", ".join(f"{n} {b / rate * 1e3:.1f} ms" for n, b in ops.weight_bytes.items())
        table = Table(
            "op", "native ms", "twin ms", title=f"{rows} rows; floor of reading: {floors}"
        )
        repeats = options.repeats if rows < 512 else 3
        found["ms"][rows] = {}
        for name, (native, twin) in ops.calls().items():
            ours, theirs = median_ms(native, twin, repeats)
            table.add_row(name, f"{ours:.3f}", "" if theirs is None else f"{theirs:.3f}")
            found["ms"][rows][name] = {"native": ours, "twin": theirs}
        console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
