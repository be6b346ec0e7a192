#!/usr/bin/env python3
"""How far a model drifts from its float32 self: in bfloat16, and with 8-bit weights.

usage: quantization_drift.py MODEL [--text FILE] [--window 512] [--json FILE]

MODEL is what model.path takes. Of a GGUF file there are two forms more: stored, its quantised
matrices multiplied as they are (where the kernels do so, else it is left out), and q8_0, all
matrices in Q8_0, written for the occasion and kept so. The text (default: the one that the tests
carry) is cut into windows, each read by itself. perplexity: of the text. argmax: share of positions
whose most likely token is that of float32. mean |dlogp|: of the text's tokens, against float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import gguf
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attention_backends import AttentionShape
from runtime.config import resolve_model_path
from runtime.config.sections import ModelConfig
from runtime.models import LoadedModel, load_model, weight_bytes
from runtime.text import load_tokenizer

TEXT = Path(__file__).resolve().parent.parent / "tests" / "texts" / "lighthouse.txt"
FORMS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "stored": {"dtype": "bfloat16", "quantization": "auto"},
    "q8_0": {"dtype": "bfloat16", "quantization": "q8_0"},
}


class Drift(NamedTuple):
    perplexity: float
    argmax_agreement: float
    mean_logprob_change: float
    weight_bytes: int


def measure(model: str, text: str, window: int = 512) -> dict[str, Drift]:
    """Of every form; float32 is the reference of the others.

    Args:
        model: what `model.path` takes.
        window: tokens read at once, each window by itself.
    """
    path = resolve_model_path(model)
    tokenizer = load_tokenizer(ModelConfig(path=path))
    if tokenizer is None:
        raise SystemExit(f"{model}: no tokenizer beside the model")
    ids = torch.tensor(list(tokenizer.encode(text)))
    drifts: dict[str, Drift] = {}
    reference: tuple[Tensor, Tensor] | None = None
    for name, changes in FORMS.items():
        if name in ("stored", "q8_0") and not path.endswith(".gguf"):
            continue
        loaded = _load_q8_0(path) if name == "q8_0" else _load(path, changes)
        if name == "stored" and not (loaded.spec.stored or loaded.spec.q8_0):
            continue
        chosen, logprobs = _read(loaded, ids, window)
        reference = reference or (chosen, logprobs)
        drifts[name] = Drift(
            perplexity=logprobs.mean().neg().exp().item(),
            argmax_agreement=(chosen == reference[0]).float().mean().item(),
            mean_logprob_change=(logprobs - reference[1]).abs().mean().item(),
            weight_bytes=weight_bytes(loaded.spec),
        )
    return drifts


def write_q8_0(source: Path, target: Path) -> None:
    """A GGUF file with every matrix in Q8_0, from another; without its tokenizer."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        is_kept = not key.startswith(("GGUF.", "general.architecture", "tokenizer."))
        if is_kept and field.types[0] is not gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _load(path: str, changes: dict[str, str]) -> LoadedModel:
    return load_model(ModelConfig(path=path, **changes), torch.device("cpu"))


def _load_q8_0(path: str) -> LoadedModel:
    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder) / "q8_0.gguf"
        write_q8_0(Path(path), quantized)
        return _load(str(quantized), {**FORMS["q8_0"], "cache_dir": folder})


@torch.inference_mode()
def _read(loaded: LoadedModel, ids: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The most likely token after each token of the text, and the real one's log-probability."""
    chosen, logprobs = [], []
    for part in ids.split(window):
        if len(part) < 2:
            continue
        attention = _DenseAttention(loaded.attention_shapes)
        hidden = loaded.model.forward(part, torch.arange(len(part)), attention)
        logits = loaded.model.compute_logits(hidden[:-1]).float().log_softmax(-1)
        chosen.append(logits.argmax(-1))
        logprobs.append(logits.gather(1, part[1:, None])[:, 0])
    return torch.cat(chosen), torch.cat(logprobs)


class _DenseAttention:
    """Causal attention over one prompt, without a cache."""

    def __init__(self, shapes: list[AttentionShape]) -> None:
        self._shapes = shapes

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = self._shapes[layer]
        group = shape.num_q_heads // shape.num_kv_heads
        keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * shape.scale
        if shape.softcap:
            scores = (scores / shape.softcap).tanh() * shape.softcap
        distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
        hidden = (distance < 0) | (distance >= (shape.window or len(q)))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1).to(q.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    drifts = measure(options.model, options.text.read_text("utf-8"), options.window)
    table = Table("form", "weights MB", "perplexity", "argmax", "mean |dlogp|")
    for name, drift in drifts.items():
        table.add_row(
            *(name, f"{drift.weight_bytes / 1e6:.1f}", f"{drift.perplexity:.4f}"),
            *(f"{drift.argmax_agreement:.2%}", f"{drift.mean_logprob_change:.4f}"),
        )
    Console().print(table)
    if options.json:
        found = {name: drift._asdict() for name, drift in drifts.items()}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
