"""Out of memory in each part of a start: the message names the part and what makes it smaller."""

import pytest
import torch

from attention_backends import torch_paged
from graphs import GraphError
from runtime import RuntimeConfig
from runtime.errors import ConfigError, ModelError, StepgraphError
from runtime.front import build
from runtime.models import load_model
from runtime.models._decoder import Decoder
from runtime.runner import ModelRunner, measure_footprint, model_runner
from runtime.runner.out_of_memory import explain_out_of_memory
from runtime.sampling import Sampler
from tests.unit.runner.helpers import CPU

OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def config_of(path):
    return RuntimeConfig(
        model={"path": path, "format": "dummy", "max_model_len": 40},
        scheduler={"max_num_seqs": 6, "max_num_batched_tokens": 64},
        cache={"num_blocks": 66, "block_size": 4},
        attention={"backend": "torch_paged"},
        graphs={"decode": "emulated", "mixed": "emulated"},
        engine={"device": "cpu"},
    )


class Meter:
    """Of a device where everything is free."""

    def free(self):
        return 1 << 30

    def taken(self):
        return 0

    peak = taken

    def reset_peak(self):
        pass


def serve(path):
    """A whole start, as on any device."""
    build.build_engine(config_of(path)).close()


def measure(path):
    """What a start on a GPU does before its pool is sized."""
    config = config_of(path)
    loaded = load_model(config.model, CPU)
    backend = torch_paged.Backend
    measure_footprint(config, loaded, backend, device=CPU, block_size=4, meter=Meter())


def refuse(monkeypatch, owner, name):
    def refusing(*args, **kwargs):
        raise OOM

    monkeypatch.setattr(owner, name, refusing)


WEIGHTS = ("weights, which take 0 MiB on cpu: set model.dtype", "model.quantization to int8")
BUFFERS = ("the buffers: lower scheduler.max_num_seqs", "model.max_model_len")
WORKSPACES = ("the workspaces: lower scheduler.max_num_seqs", "attention.backend")
POOL = ("the KV pool: lower cache.memory or cache.num_blocks",)
SMALLEST_POOL = ("the smallest KV pool: lower cache.block_size", "model.max_model_len")
GRAPHS = (
    "the graphs: lower cache.memory, the number of graphs.sizes",
    "graphs.decode or graphs.mixed to eager",
)
CAPTURE = (*GRAPHS, "memory while capturing ")
TRIAL_GRAPHS = ("the graphs: lower the number of graphs.sizes", *GRAPHS[1:])
TRIAL_CAPTURE = (*TRIAL_GRAPHS, *CAPTURE[2:])
ACTIVATIONS = ("the activations: lower scheduler.max_num_batched_tokens",)
PLACES = {
    "weights, allocated": (Decoder, "__init__", ModelError, WEIGHTS),
    "weights, filled": (Decoder, "parameters", ModelError, WEIGHTS),
    "weights, packed": (Decoder, "pack", ModelError, WEIGHTS),
    "states": (model_runner, "RequestStates", ConfigError, BUFFERS),
    "inputs": (model_runner, "InputBuffers", ConfigError, BUFFERS),
    "attention's outputs": (model_runner, "AttentionOutputs", ConfigError, BUFFERS),
    "the sampler": (Sampler, "__init__", ConfigError, BUFFERS),
    "the backend": (torch_paged.Backend, "__init__", ConfigError, WORKSPACES),
    "its workspaces": (torch_paged.Backend, "reserve", ConfigError, WORKSPACES),
    "KV pool": (torch_paged.Backend, "allocate_kv", ConfigError, POOL),
    "a bucket": (torch_paged.Backend, "open_bucket", ConfigError, GRAPHS),
    "a capture": (Decoder, "forward", ConfigError, CAPTURE),
}
MEASURED_PLACES = {
    **{place: told for place, told in PLACES.items() if "weights" not in place},
    "KV pool": (torch_paged.Backend, "allocate_kv", ConfigError, SMALLEST_POOL),
    "a bucket": (torch_paged.Backend, "open_bucket", ConfigError, TRIAL_GRAPHS),
    "a capture": (Decoder, "forward", ConfigError, TRIAL_CAPTURE),
    "the largest step": (ModelRunner, "run_largest", ConfigError, ACTIVATIONS),
}


@pytest.mark.parametrize("place", PLACES)
def test_of_a_start(place, tiny_path, monkeypatch):
    owner, name, kind, said = PLACES[place]
    if name == "parameters":
        monkeypatch.setattr(Decoder, name, property(lambda self: (_ for _ in ()).throw(OOM)))
    else:
        refuse(monkeypatch, owner, name)
    assert_told(serve, tiny_path, kind, said)


@pytest.mark.parametrize("place", MEASURED_PLACES)
def test_of_what_is_measured_first(place, tiny_path, monkeypatch):
    """With a pool of one block, so that no key of the pool makes room."""
    owner, name, kind, said = MEASURED_PLACES[place]
    if place == "a capture":  # the largest step is sound
        monkeypatch.setattr(ModelRunner, "run_largest", lambda runner: None)
    refuse(monkeypatch, owner, name)
    text = assert_told(measure, tiny_path, kind, said)
    assert "cache.memory" not in text
    assert "cache.num_blocks" not in text


def assert_told(start, path, kind, said):
    with pytest.raises(StepgraphError) as raised:
        start(path)
    assert type(raised.value) is kind
    assert str(raised.value).startswith("out of memory ")
    for part in (*said, str(OOM)):
        assert part in str(raised.value)
    cause = raised.value.__cause__
    assert OOM in (cause, cause.__cause__)
    return str(raised.value)


@pytest.mark.parametrize("start", [serve, measure])
def test_without_a_fault_it_starts(start, tiny_path):
    start(tiny_path)


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory("buffers"):
        raise RuntimeError("shapes differ")
    with pytest.raises(GraphError, match="layout"), explain_out_of_memory("graphs"):
        raise GraphError("the layout changed") from RuntimeError("layout")
