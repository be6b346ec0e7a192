"""Precedence and origin: flags over environment over YAML over defaults."""

from pathlib import Path

import pytest

from runtime.config import Origin, environment_name, load_run_config
from runtime.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


BASE = "model: {path: x}\nscheduler:\n  max_num_seqs: 2\n  watermark: 0.1\n"


def test_each_layer_wins_over_those_below(run_file):
    path, env = run_file(BASE), {"STEPGRAPH_SCHEDULER__MAX_NUM_SEQS": "3"}
    sets, key = ["scheduler.max_num_seqs=4"], ("scheduler", "max_num_seqs")
    default, at_default = load_run_config(None, ["model.path=x"], {})
    assert default.scheduler.max_num_seqs == 64
    assert at_default.of(key) == Origin("default", "")

    by_yaml, at_yaml = load_run_config(path, [], {})
    assert by_yaml.scheduler.max_num_seqs == 2
    assert at_yaml.of(key) == Origin("yaml", f"{path}:3")

    by_env, at_env = load_run_config(path, [], env)
    assert by_env.scheduler.max_num_seqs == 3
    assert at_env.of(key) == Origin("environment", "STEPGRAPH_SCHEDULER__MAX_NUM_SEQS")

    by_flag, at_flag = load_run_config(path, sets, env)
    assert by_flag.scheduler.max_num_seqs == 4
    assert at_flag.of(key) == Origin("flag", "--set scheduler.max_num_seqs")

    by_override, at_override = load_run_config(
        path, sets, env, overrides={"scheduler.max_num_seqs": 5}
    )
    assert by_override.scheduler.max_num_seqs == 5
    assert at_override.of(key).kind == "override"
    assert by_override.scheduler.watermark == 0.1
    assert at_override.of(("scheduler", "policy")).kind == "default"


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("STEPGRAPH_CACHE__BLOCK_SIZE", "8")
    assert load_run_config(None, ["model.path=x"])[0].cache.block_size == 8


def test_later_flags_win_and_mappings_merge():
    config, provenance = load_run_config(
        None,
        ["model.path=x", "sampling={seed: 1, max_tokens: 4}", "sampling.seed=2"],
        {"STEPGRAPH_SAMPLING__TOP_K": "5"},
    )
    assert config.sampling == {"top_k": 5, "seed": 2, "max_tokens": 4}
    assert provenance.of(("sampling", "top_k")).kind == "environment"
    assert provenance.of(("sampling", "seed")) == Origin("flag", "--set sampling.seed")


@pytest.mark.case("CL01")
def test_false_in_yaml_is_not_dropped(run_file):
    config, _ = load_run_config(
        run_file("model: {path: x}\ncache: {prefix_caching: false}"), [], {}
    )
    assert config.cache.prefix_caching is False


@pytest.mark.case("CL03")
@pytest.mark.parametrize("word", ["off", "No", '"false"', "yes", '"true"', "1"])
def test_words_are_no_booleans(run_file, word):
    path = run_file(f"model: {{path: x}}\ncache:\n  prefix_caching: {word}\n")
    with pytest.raises(ConfigError, match=r"run.yaml:3: cache.prefix_caching: must be true or"):
        load_run_config(path, [], {})
    with pytest.raises(ConfigError, match=r"^--set cache.prefix_caching: must be true or"):
        load_run_config(None, ["model.path=x", f"cache.prefix_caching={word}"], {})


@pytest.mark.case("CL03")
def test_a_model_named_on(run_file):
    assert load_run_config(run_file("model: {path: on}"), [], {})[0].model.path == "on"


@pytest.mark.case("CL05")
def test_problems_name_their_place(run_file):
    path = run_file(
        "model:\n  path: x\nscheduler:\n  max_num_batched_token: 64\nsampling:\n  top_p: 2\n"
    )
    env = {"STEPGRAPH_CACHE__BLOCK_SIZE": "1k"}
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, ["cache.hash=md5"], env)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "4 problems in the configuration:"
    assert sorted(lines[1:]) == [
        '--set cache.hash: must be one of xxh3_128, sha256, got "md5"',
        f"{path}:4: scheduler.max_num_batched_token: unknown key; "
        "did you mean max_num_batched_tokens?",
        f"{path}:6: sampling.top_p: must be in (0, 1], got 2",
        "STEPGRAPH_CACHE__BLOCK_SIZE: cache.block_size: must be an integer >= 1 or auto, "
        'got "1k"; write the number out: 1000 or 1024',
    ]


@pytest.mark.case("CL05")
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("STEPGRAPH_SCHEDULER__MAX_NUM_SEQ", "did you mean STEPGRAPH_SCHEDULER__MAX_NUM_SEQS?"),
        ("STEPGRAPH_CACHE_DIRR", "did you mean STEPGRAPH_CACHE_DIR?"),
        ("STEPGRAPH_BLOCK_SIZE", "did you mean STEPGRAPH_CACHE__BLOCK_SIZE?"),
        (
            "STEPGRAPH_FOO",
            "names are STEPGRAPH_SECTION__KEY, such as STEPGRAPH_MODEL__PATH",
        ),
    ],
)
def test_unknown_variables_are_errors(name, suggestion):
    with pytest.raises(ConfigError) as caught:
        load_run_config(None, ["model.path=x"], {name: "1"})
    assert str(caught.value) == f"{name}: unknown variable; {suggestion}"


def test_variables_that_are_no_keys_are_left_alone():
    env = {"STEPGRAPH_CACHE_DIR": "/tmp", "STEPGRAPH_TEST_ANY": "9", "PATH": "/bin"}
    assert load_run_config(None, ["model.path=x"], env)[0].model.cache_dir is None


@pytest.mark.parametrize("text", ["model.path", "=x", "a..b=1", ""])
def test_flags_that_are_no_settings(text):
    with pytest.raises(ConfigError, match=r"must be KEY=VALUE"):
        load_run_config(None, [text], {})


@pytest.mark.parametrize("text", [BASE, BASE + "requests: [{prompt: in the file}]\n"])
def test_a_flag_is_blamed_for_what_it_replaced(run_file, text):
    path = run_file(text)
    for flag, message in [
        (
            "requests.0.prompt",
            "requests: must be a list of mappings, got a mapping; the items of a list cannot be "
            "set one by one, write the whole list",
        ),
        ("model.path.x", "model.path: must be a string, got a mapping"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_run_config(path, [f"{flag}=hi"], {})
        assert str(caught.value) == f"--set {flag}: {message}"


def test_a_key_that_nobody_set_is_missing_from_the_file(run_file):
    path = run_file("cache: {hash: sha256}\n")
    with pytest.raises(ConfigError, match=rf"^{path}:1: model.path: missing"):
        load_run_config(path, ["model.seed=3"], {})
    with pytest.raises(ConfigError, match=r"^model.path: missing"):
        load_run_config(None, ["model.seed=3"], {})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("messages: [{role: user, content: x}]", "messages: unknown key; did you mean chat?"),
        ("chat: null", "must have exactly one of prompt, chat, token_ids, got none"),
        ("{prompt: a, tools: [{name: f}]}", "tools: go with chat only, not with prompt"),
        ("{prompt: a, id: 1.5}", "id: must be a string or an integer or null, got 1.5"),
        ("{prompt: a, sampling: {top_p: null}}", "sampling.top_p: must be in (0, 1], got null"),
        (
            "{prompt: a, sampling: {max_tokens: true}}",
            "sampling.max_tokens: must be an integer >= 1, got true",
        ),
    ],
)
def test_entries_that_are_no_requests(run_file, entry, message):
    with pytest.raises(ConfigError) as caught:
        load_run_config(run_file(f"model: {{path: x}}\nrequests:\n- {entry}\n"), [], {})
    where = ": " if message.startswith("must") else "."
    assert f"run.yaml:3: requests[0]{where}{message}" in str(caught.value)


def test_a_request_may_have_a_name_and_tools(run_file):
    entry = "{id: a1, chat: [{role: user, content: x}], tools: [{name: f}]}"
    config, _ = load_run_config(run_file(f"model: {{path: x}}\nrequests: [{entry}]\n"), [], {})
    assert (config.requests[0].id, config.requests[0].tools) == ("a1", [{"name": "f"}])


def test_a_section_without_keys_is_its_defaults(run_file):
    path = run_file("model: {path: x}\nscheduler:\n  # max_num_seqs: 4\nrequests:\n")
    config, _ = load_run_config(path, [], {})
    assert config.scheduler.max_num_seqs == 64
    assert config.requests == []


def test_an_unknown_section_without_keys_is_unknown(run_file):
    with pytest.raises(ConfigError, match=r"run.yaml:2: schedular: unknown key"):
        load_run_config(run_file("model: {path: x}\nschedular:\n"), [], {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", r"run.yaml: the file is empty; it must hold sections"),
        ("cache: {}\n\nmodel:\n  seed: 1\n", r"run.yaml:3: model.path: missing"),
        ("model: x\n", r"run.yaml:1: model: must be a mapping with the keys path"),
        ("model: {path: x}\nrequests: {a: 1}", r"run.yaml:2: requests: must be a list of mappings"),
        ("model: {path: x}\nrequests:\n- prompt: 3\n", r"run.yaml:3: requests\[0\].prompt: "),
        ("model: {path: x}\nrequests:\n- a\n", r"run.yaml:3: requests\[0\]: must be a mapping"),
        (
            "model: {path: x}\nrequests:\n- prompt: a\n- {}\n",
            r"run.yaml:4: requests\[1\]: must have exactly one of prompt, chat, token_ids",
        ),
        (
            "model: {path: x}\nscheduler:\n  max_num_batched_tokens: 8\n",
            r"run.yaml:3: scheduler.max_num_batched_tokens: must be >= scheduler.max_num_seqs = 64",
        ),
    ],
)
def test_shapes_that_do_not_fit(run_file, text, message):
    with pytest.raises(ConfigError, match=message):
        load_run_config(run_file(text), [], {})


def test_names_of_variables():
    assert environment_name(("model", "max_model_len")) == "STEPGRAPH_MODEL__MAX_MODEL_LEN"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_the_run_files_of_the_repository_are_whole(path):
    config, _ = load_run_config(str(path), [], {})
    assert config.requests or "server" in config.model_fields_set
    assert Path(config.model.path).is_file()
    text = path.read_text(encoding="utf-8")
    assert "/home" not in text
    assert "site-packages" not in text


def test_there_are_run_files():
    assert {"quickstart.yaml", "exactness-float32.yaml"} <= {path.name for path in CONFIGS}
