"""The model and the runner that are checked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attention_backends import AttentionBackend
from runtime.models import LoadedModel, ModelSpec
from runtime.models._interface import Attend
from runtime.models._loaded import build
from runtime.runner import ModelRunner
from tools._gpu_check.scale import Scale


def load(spec: ModelSpec, device: torch.device, seed: int = 0) -> LoadedModel:
    """The model with random weights: norms near 1, matrices that keep the scale of their inputs."""
    generator = torch.Generator(device).manual_seed(seed)

    def fill(model: Any) -> None:
        for name, parameter in model.parameters.items():
            is_norm = "norm" in name
            scale = 0.1 if is_norm else parameter.shape[-1] ** -0.5
            parameter.normal_(float(is_norm), scale, generator=generator)

    return build(spec, device, fill)


def settings(
    decode: str,
    mixed: str,
    *,
    max_num_seqs: int,
    max_tokens: int,
    max_model_len: int,
    sizes: Any = "auto",
) -> Any:
    """What runner and scheduler read of a RuntimeConfig, which itself needs more than torch."""
    return SimpleNamespace(
        scheduler=SimpleNamespace(
            policy="mixed",
            order="fcfs",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_tokens,
            chunked_prefill=True,
            long_prefill_token_threshold=0,
            watermark=0.0,
        ),
        graphs=SimpleNamespace(
            decode=decode,
            mixed=mixed,
            sizes=sizes,
            lazy_after=0,
            check_addresses=False,
            compare_every=0,
        ),
        engine=SimpleNamespace(padding_canary=False),
        model=SimpleNamespace(max_model_len=max_model_len),
    )


def exact_settings(scale: Scale, decode: str, mixed: str) -> Any:
    """Those of the sections that compare."""
    return settings(
        decode,
        mixed,
        max_num_seqs=scale.exact_rows,
        max_tokens=scale.exact_budget,
        max_model_len=scale.exact_context,
        sizes=list(scale.exact_sizes),
    )


class Recorder:
    """A model that keeps the logits that it gave."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self.loaded = LoadedModel(self, loaded.spec, loaded.attention_shapes, loaded.device)
        self.logits: list[Tensor] = []

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self._model.forward(input_ids, positions, attend)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.logits.append(self._model.compute_logits(hidden))
        return self.logits[-1]


@contextmanager
def runner_of(
    config: Any,
    loaded: LoadedModel,
    backend: type[AttentionBackend],
    *,
    block_size: int,
    num_blocks: int,
) -> Iterator[ModelRunner]:
    """A runner with its graphs captured; its memory is given back at the end."""
    runner = ModelRunner(
        config,
        loaded,
        backend,
        device=loaded.device,
        max_model_len=config.model.max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
    )
    try:
        yield runner
    finally:
        runner.close()
        del runner
        give_memory_back(loaded.device)


def give_memory_back(device: torch.device) -> None:
    """After large things were dropped."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
