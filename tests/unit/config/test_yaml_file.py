"""What is read from YAML, and what is said where it cannot be read."""

import re

import pytest

from runtime.config.yaml_file import parse_value, read_yaml
from runtime.errors import ConfigError


def written(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_values_are_plain_and_lines_are_counted_from_one(tmp_path):
    path = written(tmp_path, "# top\nmodel:\n  path: x\n  seed: 1_000\nlist:\n- a\n- {b: 2.5}\n")
    values, lines = read_yaml(path)
    assert values == {"model": {"path": "x", "seed": 1000}, "list": ["a", {"b": 2.5}]}
    assert type(values["model"]["seed"]) is int
    assert type(values["list"][1]["b"]) is float
    assert lines[("model",)] == 2
    assert lines[("model", "seed")] == 4
    assert lines[("list", 1)] == 7
    assert lines[("list", 1, "b")] == 7


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "N", "NO", "Yes"])
def test_yaml_1_2_has_no_other_booleans(word):
    assert parse_value(word, "flag") == word


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("8", 8), ("0.5", 0.5), ("[1, 2]", [1, 2]), ("'8'", "8"), ("", None)],
)
def test_flags_are_yaml(text, value):
    assert parse_value(text, "flag") == value


def test_anchors_and_merge_keys_become_plain_values(tmp_path):
    path = written(tmp_path, "base: &b {x: 1}\nother:\n  <<: *b\n  y: 2\nsame: *b\n")
    values, lines = read_yaml(path)
    assert values == {"base": {"x": 1}, "other": {"x": 1, "y": 2}, "same": {"x": 1}}
    assert lines[("other", "x")] == 2
    assert lines[("other", "y")] == 4


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, content):
    with pytest.raises(ConfigError, match=r"run\.yaml: the file is empty"):
        read_yaml(written(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1\n", "must be a mapping of sections"),
        ("text", "must be a mapping of sections"),
        ("a: 1\nb: 2\na: 3\n", 'run.yaml:3: duplicate key "a"'),
        ("s:\n  x: 1\n  x: 1\n", 'run.yaml:3: duplicate key "x"'),
        ("model: {path: [\n", r"run.yaml:2: no valid YAML: while parsing a flow"),
        ("model:\n\tpath: x\n", r"run.yaml:2: no valid YAML: .*'\\t'"),
        ("model:\n  path: *gone\n", r"run.yaml:2: no valid YAML: found undefined alias"),
        ("--- {a: 1}\n--- {b: 1}\n", "run.yaml:2: no valid YAML: expected a single document"),
        (b"model:\n  path: \xff\n", "run.yaml:2: must be text in UTF-8"),
        (b"a: \x00\n", "run.yaml: no valid YAML: unacceptable character"),
        ("s:\n  when: 2020-01-01\n", "run.yaml:2: s.when: must be a plain YAML value"),
        ("s:\n- !!binary aGk=\n", r"run.yaml:2: s\[0\]: must be a plain YAML value"),
        ("&all\na: 1\nb: *all\n", "run.yaml:3: b contains itself through an alias"),
        ("s: &s {<<: *s}\n", "run.yaml: no valid YAML"),
        ("x: " + "[" * 3000, "no valid YAML"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message):
        read_yaml(written(tmp_path, content))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.yaml: cannot be read: No such file"):
        read_yaml(str(tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: cannot be read")):
        read_yaml(str(tmp_path))


def test_broken_yaml_in_a_flag_names_the_flag():
    with pytest.raises(ConfigError, match=r"--set graphs.sizes.*no valid YAML"):
        parse_value("[1", "--set graphs.sizes")
