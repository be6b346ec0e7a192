"""How ranks may divide the tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime.config.sections import ModelConfig
from runtime.models import read_spec
from runtime.models._cut import WHOLE, Cut
from runtime.models._weight_map import parameter_shapes, weight_map
from tests.builders import write_config


@pytest.mark.parametrize(
    ("cut", "size", "world_size", "expected"),
    [
        (WHOLE, 6, 3, [(0, 6)] * 3),
        (Cut(0, 6), 12, 1, [(0, 12)]),
        (Cut(0, 6), 12, 3, [(0, 4), (4, 8), (8, 12)]),
        (Cut(0, 2, repeats=True), 8, 4, [(0, 4), (0, 4), (4, 8), (4, 8)]),
        (Cut(0, 10, is_ragged=True), 10, 4, [(0, 3), (3, 6), (6, 9), (9, 10)]),
        (Cut(0, 3, is_ragged=True), 3, 5, [(0, 1), (1, 2), (2, 3), (3, 3), (3, 3)]),
    ],
)
def test_what_each_rank_holds(cut, size, world_size, expected) -> None:
    spans = [cut.span(size, rank, world_size) for rank in range(world_size)]
    assert [(span.start, span.stop) for span in spans] == expected


@pytest.mark.parametrize(
    ("cut", "size", "message"),
    [
        (Cut(0, 9), 18, "9 units cannot be divided among 4 ranks"),
        (Cut(0, 3, repeats=True), 12, "3 units cannot be divided among 4 ranks"),
        (Cut(1, 5), 12, "12 elements cannot be divided into 5 units"),
    ],
)
def test_what_cannot_be_divided_is_refused(cut, size, message) -> None:
    with pytest.raises(ValueError, match=message):
        cut.span(size, 0, 4)


def test_a_rank_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        Cut(0, 4).span(8, 2, 2)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_a_layer_computed_by_two_ranks_is_that_of_one(tmp_path: Path, architecture: str) -> None:
    """Column parallel outputs side by side, row parallel outputs summed, by the map alone."""
    torch.manual_seed(0)
    spec = read_spec(
        ModelConfig(
            path=str(write_config(tmp_path, architecture, attention_bias=True)), format="dummy"
        )
    )
    shapes, hidden = parameter_shapes(spec), torch.randn(3, spec.hidden_size)
    slots = {n: s for n, s in weight_map(spec).items() if s.parameter.startswith("layers.0.")}
    checkpoint = {
        name: torch.randn(slot.rows, *shapes[slot.parameter][1:])
        for name, slot in slots.items()
        if not slot.repeated
    }

    def held(name: str, rank: int) -> torch.Tensor:
        tensor, cut = checkpoint[name], slots[name].cut
        if cut.axis is None:
            return tensor
        span = cut.span(tensor.shape[cut.axis], rank, 2)
        return tensor.narrow(cut.axis, span.start, span.stop - span.start)

    for kind in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"):
        name = f"model.layers.0.{kind}"
        outputs = [hidden @ held(f"{name}.weight", rank).T for rank in range(2)]
        if f"{name}.bias" in checkpoint:
            outputs = [out + held(f"{name}.bias", rank) for rank, out in enumerate(outputs)]
        whole = hidden @ checkpoint[f"{name}.weight"].T + checkpoint.get(f"{name}.bias", 0)
        torch.testing.assert_close(torch.cat(outputs, 1), whole)
    for kind in ("self_attn.o_proj", "mlp.down_proj"):
        name = f"model.layers.0.{kind}.weight"
        inputs = torch.randn(3, checkpoint[name].shape[1])
        parts = [held(name, rank) for rank in range(2)]
        split = inputs.split([part.shape[1] for part in parts], 1)
        summed = sum(x @ part.T for x, part in zip(split, parts, strict=True))
        torch.testing.assert_close(summed, inputs @ checkpoint[name].T)
        assert (
            slots.get(f"model.layers.0.{kind}.bias", slots[name]._replace(cut=WHOLE)).cut == WHOLE
        )


def test_the_vocabulary_is_cut_by_rows_and_norms_are_not(tmp_path: Path) -> None:
    spec = read_spec(ModelConfig(path=str(write_config(tmp_path)), format="dummy"))
    slots = weight_map(spec)
    assert slots["model.embed_tokens.weight"].cut == Cut(0, spec.vocab_size, is_ragged=True)
    assert {slot.cut for name, slot in slots.items() if "norm" in name} == {WHOLE}
