"""What a checkpoint's generation_config.json sets, and how a request changes it."""

import json

import pytest

from runtime import Runtime, RuntimeConfig, SamplingParams
from runtime.config import ModelConfig
from runtime.models import read_spec
from tests.builders import write_config


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    folder = write_config(tmp_path_factory.mktemp("model"))
    generation = {
        "temperature": 0.6,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "eos_token_id": [2, 5],
        "do_sample": True,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    config = RuntimeConfig(
        model={"path": str(folder), "format": "dummy", "max_model_len": 64},
        cache={"num_blocks": 16, "block_size": 4},
    )
    with Runtime(config) as made:
        yield made


@pytest.mark.case("LD15")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (0.6, 20, 1.1)),
        ({"top_k": 5}, (0.6, 5, 1.1)),
        ({"top_k": 0, "repetition_penalty": 1.0, "temperature": 0.0}, (0.0, 0, 1.0)),
        (SamplingParams(top_k=5), (1.0, 5, 1.0)),
    ],
    ids=["the model's", "one changed", "neutral values win", "SamplingParams are taken as given"],
)
def test_a_request_changes_the_model_s_defaults(runtime, given, expected):
    settled = runtime.settle_params(given)
    assert (settled.temperature, settled.top_k, settled.repetition_penalty) == expected


def test_every_eos_of_the_list_ends_a_request(runtime):
    assert runtime.spec.eos_token_ids == (2, 5)
    for eos in (2, 5):
        params = {"allowed_token_ids": [eos], "max_tokens": 4}
        [result] = runtime.generate([[7, 8]], params)
        assert result.token_ids == (eos,)
        assert (result.finish_reason, result.stop_reason) == ("stop", None)


def test_no_sampling_is_greedy_by_default(tmp_path):
    folder = write_config(tmp_path)
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    assert read_spec(ModelConfig(path=str(folder), format="dummy")).generation_defaults == {
        "temperature": 0.0
    }
