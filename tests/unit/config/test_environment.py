"""Environment variables are text: their keys say how to read them."""

import pytest

from runtime.config import environment_name, load_run_config
from runtime.config.describe import annotation_of, base_kinds, leaf_keys
from runtime.config.schema import RunConfig
from runtime.errors import ConfigError

SWITCHES = [
    key
    for key in leaf_keys(RunConfig)
    if bool in base_kinds(annotation_of(RunConfig, key)) and key[-1] != "bind_cores"
]
SPELLINGS = {True: ["1", "true", "YES", "On"], False: ["0", "False", "no", "OFF", " off "]}


def loaded(**env):
    named = {"STEPGRAPH_MODEL__PATH": "x", **env}
    return load_run_config(None, [], named)[0]


def value_of(config, key):
    for part in key:
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("key", SWITCHES, ids=".".join)
def test_every_switch_takes_every_spelling(key):
    for meant, texts in SPELLINGS.items():
        for text in texts:
            assert value_of(loaded(**{environment_name(key): text}), key) is meant, text


def test_a_switch_of_sampling():
    config = loaded(STEPGRAPH_SAMPLING__IGNORE_EOS="1", STEPGRAPH_SAMPLING__TOP_K="1")
    assert config.sampling == {"ignore_eos": True, "top_k": 1}
    assert config.sampling["top_k"] is not True


@pytest.mark.parametrize(("text", "value"), [("1", "1"), ("0", "0"), ("yes", True), ("0-1", "0-1")])
def test_a_number_of_bind_cores_is_a_core(text, value):
    assert loaded(STEPGRAPH_ENGINE__BIND_CORES=text).engine.bind_cores == value


@pytest.mark.parametrize("key", [*leaf_keys(RunConfig), ("sampling", "top_k")], ids=".".join)
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_value_says_so(key, text):
    name = environment_name(key)
    with pytest.raises(ConfigError, match=f"{name}: is empty; give .* or unset it"):
        loaded(**{name: text})


def test_empty_and_unknown_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        loaded(STEPGRAPH_CACHE__PREFIX_CACHING="", STEPGRAPH_CACHE__SIZE="1")
    assert "PREFIX_CACHING: is empty" in str(error.value)
    assert "SIZE: unknown variable" in str(error.value)


@pytest.mark.parametrize("text", ["maybe", "2", "t"])
def test_other_words_are_no_switch(text):
    with pytest.raises(ConfigError, match="must be true or false"):
        loaded(STEPGRAPH_CACHE__PREFIX_CACHING=text)


@pytest.mark.parametrize("text", ["512MiB", "4GB", "1.5GiB", "4 GiB", "1048576", "auto"])
def test_sizes_are_the_same_in_all_three_places(text, tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text(f"model: {{path: x}}\ncache:\n  memory: {text}\n")
    in_file = load_run_config(str(run), [], {})[0].cache.memory
    by_flag = load_run_config(None, ["model.path=x", f"cache.memory={text}"], {})[0].cache.memory
    assert in_file == by_flag == loaded(STEPGRAPH_CACHE__MEMORY=text).cache.memory


def test_a_path_of_digits_is_text():
    assert loaded(STEPGRAPH_MODEL__PATH="1234").model.path.endswith("1234")
