"""What is wrong with a configuration is told before the model is opened, all at once."""

import pytest
import torch

from attention_backends import Support
from attention_backends._interface import GraphSupport
from graphs import load_mode
from runtime import Runtime, RuntimeConfig
from runtime.cli.debug_keys import debug_facts
from runtime.errors import BackendError, ConfigError
from runtime.front import build
from runtime.front.early import check_early
from runtime.runner import check_modes
from tests.builders import write_config


def config(path="missing", **sections):
    return RuntimeConfig(model={"path": str(path), "format": "dummy"}, **sections)


@pytest.mark.parametrize(
    ("key", "name", "hint"),
    [
        ("attention.backend", "cpu_nativ", "did you mean cpu_native?"),
        ("attention.prefill_backend", "torch", "must be one of auto, cpu_native"),
        ("attention.decode_backend", "x", 'got "x"'),
        ("graphs.decode", "foo", "must be one of auto, eager"),
        ("graphs.mixed", "segmentd", "did you mean segmented?"),
    ],
)
def test_a_name_that_no_plug_in_has(key, name, hint):
    section, field = key.split(".")
    with pytest.raises(ConfigError) as error:
        check_early(config(**{section: {field: name}}))
    assert str(error.value).startswith(f"{key}: ")
    assert hint in str(error.value)


def test_all_is_told_in_one_list_and_no_file_is_opened(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as error:
        Runtime(
            config(
                attention={"backend": "a"},
                graphs={"decode": "b", "mixed": "c"},
                engine={"device": "cuda", "bind_cores": "60000"},
            )
        )
    told = str(error.value)
    assert told.startswith("5 problems")
    for key in ("attention.backend", "graphs.decode", "graphs.mixed", "engine.device"):
        assert f"  {key}: " in told
    assert "engine.bind_cores" in told


def test_modes_that_cannot_serve_are_told_before_any_weight(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(build, "load_model", lambda *args: loaded.append(args))
    sections = {"engine": {"device": "cpu"}, "graphs": {"decode": "full", "mixed": "segmented"}}
    with pytest.raises(BackendError) as error:
        Runtime(config(write_config(tmp_path), **sections))
    assert not loaded
    assert "graphs.decode: full cannot be used" in str(error.value)
    assert "graphs.mixed: segmented cannot be used" in str(error.value)


CPU = torch.device("cpu")
ABLE = Support(True, graph=max(GraphSupport))


def facts(decode, mixed, no_kernels="", **sections):
    modes = load_mode(decode), load_mode(mixed)
    return dict(debug_facts(config(**sections), *modes, no_kernels))


def test_each_debug_key_says_whether_it_has_an_effect():
    found = facts("eager", "eager")
    assert found["engine.check_integrity"] == "off; checks every step"
    for key in ("engine.padding_canary", "graphs.check_addresses", "graphs.compare_every"):
        assert "no effect here" in found[key], key
    found = facts("recorded", "eager", graphs={"compare_every": 3})
    assert found["graphs.compare_every"] == "on; runs replays eagerly too"
    assert "no step is padded" in found["engine.padding_canary"]
    found = facts("recorded", "eager", graphs={"sizes": [4]}, engine={"padding_canary": True})
    assert found["engine.padding_canary"] == "on; checks every padded step"
    assert "no effect" not in " ".join(facts("emulated", "emulated").values())
    assert (
        "no effect here: no compiler" in facts("eager", "eager", "no compiler")["model.linear_path"]
    )
    found = facts("padded_eager", "padded_eager")
    assert "no effect" not in found["engine.padding_canary"]
    assert "no step is replayed" in found["graphs.check_addresses"]


def test_two_modes_that_give_the_same_kind(tmp_path):
    config_of = config(graphs={"decode": "emulated_ragged", "mixed": "padded_eager"}).graphs
    decode, mixed = check_modes(config_of, ABLE, CPU)
    assert decode.kind_of_decode is not mixed.kind_of_mixed
