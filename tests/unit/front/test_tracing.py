"""`observe.trace` of a Runtime."""

import json

import pytest

from attention_backends import backend_names
from runtime import Runtime, RuntimeConfig
from runtime.errors import ConfigError
from runtime.observe.trace_reader import read_trace
from tests.builders import write_config


@pytest.fixture
def config(tmp_path):
    folder = write_config(tmp_path / "m")

    def make(**sections):
        return RuntimeConfig(
            model={"path": str(folder), "format": "dummy"},
            cache={"num_blocks": 40, "block_size": 4},
            **{"engine": {"threads": 1}, **sections},
        )

    return make


class Observer:
    def __init__(self):
        self.records, self.is_closed = [], False

    def on_step(self, record):
        self.records.append(record)

    def close(self):
        self.is_closed = True


def test_a_runtime_writes_its_steps_beside_what_another_observer_is_told(config, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("older")
    observer = Observer()
    with Runtime(config(observe={"trace": str(path)}), observer=observer) as runtime:
        results = runtime.generate([[5, 6, 7], [5, 6, 7, 8]], {"max_tokens": 4, "temperature": 0})
    trace = read_trace(str(path))
    assert trace.is_closed
    assert observer.is_closed
    assert [r.so.step_id for r in observer.records] == [line.step for line in trace.steps]
    tokens = {result.request_id: [] for result in results}
    for line in trace.steps:
        sampling = [name for name, s in zip(line.request_ids, line.samples, strict=True) if s]
        for request_id, token_id in zip(sampling, line.tokens, strict=True):
            tokens[request_id].append(token_id)
    assert tokens == {result.request_id: list(result.token_ids) for result in results}
    about = trace.header.about
    assert about["model"]["architecture"] == "LlamaForCausalLM"
    assert (about["block_size"], about["num_blocks"], about["threads"]) == (4, 40, 1)
    assert about["graph_modes"].keys() == {"decode", "mixed"}
    assert about["attention_backend"] in backend_names()
    assert about["config"]["observe"]["trace"] == str(path)
    json.dumps(about, allow_nan=False)


def test_without_the_key_nobody_is_told(config):
    with Runtime(config()) as runtime:
        assert runtime.parts.observer is None
        assert runtime.engine.observer is None


def test_a_place_that_cannot_be_written_is_told_before_the_model_is_read(config, tmp_path):
    wrong = config(
        observe={"trace": str(tmp_path / "none" / "t")}, attention={"backend": "nonsense"}
    )
    with pytest.raises(ConfigError) as caught:
        Runtime(wrong)
    assert "2 problems" in str(caught.value)
    assert "observe.trace" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"trace_max_bytes": 100}, "observe.trace_max_bytes: must be an integer >= 65536"),
        ({"trace_max_bytes": "1 parsec"}, "observe.trace_max_bytes: "),
        ({"trace_files": 0}, "observe.trace_files: must be an integer >= 1"),
        ({"trace": ""}, "observe.trace: "),
    ],
)
def test_what_the_keys_allow(config, section, message):
    with pytest.raises(ConfigError) as caught:
        config(observe=section)
    assert message in str(caught.value)
    assert config(observe={"trace_max_bytes": "1MiB"}).observe.trace_max_bytes == 1 << 20
