"""The real SmolLM2: logits against transformers', and the cost of describing it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.config.schema import ModelConfig
from runtime.models import load_model, read_spec
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


def test_describing_is_cheap(smollm2_path: Path) -> None:
    """Well under the seconds that a parse of the tokenizer's strings takes."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        spec = read_spec(ModelConfig(path=str(smollm2_path)))
        best = min(best, time.perf_counter() - started)
    assert (spec.num_layers, spec.vocab_size, spec.weight_bytes) == (30, 49152, 269030016)
    assert best < 0.5
