"""A tiny model with random weights, and a runner over it."""

import json

import pytest
import torch

from runtime.config import RuntimeConfig
from runtime.models import load_model
from runtime.runner import ModelRunner, choose_backend
from tests.unit.runner.helpers import CPU

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="package", autouse=True)
def _few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def tiny_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    return str(folder)


@pytest.fixture(scope="package")
def tiny(tiny_path):
    config = RuntimeConfig(model={"path": tiny_path, "format": "dummy"})
    return load_model(config.model, CPU)


@pytest.fixture
def make_runner(tiny, tiny_path):
    def make(*, graphs=None, engine=None, loaded=tiny, **changes):
        sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 64, **changes}
        config = RuntimeConfig(
            model={"path": tiny_path, "format": "dummy"},
            scheduler=sizes,
            graphs=graphs or {},
            engine=engine or {},
        )
        shapes = loaded.attention_shapes
        backend = choose_backend("torch_paged", shapes, 4, CPU).backend
        return ModelRunner(
            config, loaded, backend, device=CPU, max_model_len=40, block_size=4, num_blocks=66
        )

    return make
