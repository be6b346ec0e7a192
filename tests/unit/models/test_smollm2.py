"""The real SmolLM2: logits against transformers', and the cost of describing it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config.sections import ModelConfig
from runtime.models import LoadedModel, load_model, read_spec, weight_bytes
from tests.builders import DenseAttend

PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


@pytest.mark.slow
def test_logits_equal_those_of_transformers(
    smollm2_path: Path, smollm2_reference: Any, tmp_path: Path
) -> None:
    config = ModelConfig(path=str(smollm2_path), dtype="float32", cache_dir=str(tmp_path))
    loaded = load_model(config, torch.device("cpu"))
    with torch.inference_mode():
        theirs = smollm2_reference(torch.tensor([PROMPT])).logits[0]
        hidden = loaded.model.forward(
            torch.tensor(PROMPT, dtype=torch.int32),
            torch.arange(len(PROMPT)),
            DenseAttend(loaded.attention_shapes),
        )
        ours = loaded.model.compute_logits(hidden)
    assert loaded.spec.tie_embeddings
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def logits(loaded: LoadedModel, prompt: Sequence[int] = PROMPT) -> torch.Tensor:
    with torch.inference_mode():
        attend = DenseAttend(loaded.attention_shapes)
        ids = torch.tensor(prompt)
        hidden = loaded.model.forward(ids, torch.arange(len(ids)), attend)
        return loaded.model.compute_logits(hidden).float()


@pytest.mark.slow
def test_q4_1_is_kept_and_loses_no_more_than_bfloat16_does(
    smollm2_path: Path, tmp_path: Path
) -> None:
    """Against the same weights in float32, over some prompts of any tokens."""

    def load(**changes: Any) -> LoadedModel:
        config = ModelConfig(path=str(smollm2_path), cache_dir=str(tmp_path), **changes)
        return load_model(config, torch.device("cpu"))

    exact, half, kept = load(dtype="float32"), load(quantization="none"), load()
    assert len(kept.spec.stored) + len(kept.spec.q8_0) == 121
    prompts = torch.randint(0, 49152, (4, 24), generator=torch.Generator().manual_seed(0)).tolist()
    expected = torch.stack([logits(exact, prompt) for prompt in prompts])
    off = [
        (torch.stack([logits(loaded, prompt) for prompt in prompts]) - expected).abs()
        for loaded in (half, kept)
    ]
    assert off[1].mean() < 1.1 * off[0].mean()
    assert off[1].max() < 0.1 * expected.abs().max()
    assert weight_bytes(kept.spec) < 1.03 * smollm2_path.stat().st_size


@pytest.mark.slow
def test_q8_0_is_kept_and_loses_no_more_than_bfloat16_does(
    smollm2_q8_0_path: Path, tmp_path: Path
) -> None:
    """Against the same weights in float32: 8 bits with bfloat16 activations come as near as
    bfloat16 does, within 10 %; the twin in float32 is the same model, in other words exact."""

    def load(**changes: Any) -> LoadedModel:
        config = ModelConfig(path=str(smollm2_q8_0_path), cache_dir=str(tmp_path), **changes)
        return load_model(config, torch.device("cpu"))

    exact, half, kept = load(dtype="float32"), load(quantization="none"), load()
    twin = load(dtype="float32", quantization="q8_0")
    assert [len(loaded.spec.q8_0) for loaded in (exact, half, kept, twin)] == [0, 0, 121, 121]
    expected = logits(exact)
    assert torch.equal(logits(twin), expected)
    off = {name: (logits(m) - expected).abs() for name, m in {"half": half, "kept": kept}.items()}
    assert off["kept"].mean() < 1.1 * off["half"].mean()
    assert off["kept"].max() < 1.5
    chosen = [logits(loaded).argmax(-1) for loaded in (kept, exact)]
    assert (chosen[0] == chosen[1]).float().mean() > 0.8
    assert weight_bytes(kept.spec) < 0.54 * weight_bytes(half.spec)
    forms = [linear.form for linear in kept.model._linears.values()]
    matrices = sum(form.num_bytes for form in forms)
    assert 0 <= weight_bytes(kept.spec) - matrices < 0.01 * matrices  # the rest: norms


def test_describing_is_cheap(smollm2_path: Path) -> None:
    """Well under the seconds that a parse of the tokenizer's strings takes."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        spec = read_spec(ModelConfig(path=str(smollm2_path)))
        best = min(best, time.perf_counter() - started)
    assert (spec.num_layers, spec.vocab_size, weight_bytes(spec)) == (
        30,
        49152,
        96506496,
    )  # its embedding is Q8_0
    assert best < 0.5
