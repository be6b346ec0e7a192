"""`stepgraph show-config`: a whole run file again, or where each value came from."""

import pytest
from ruamel.yaml import YAML

from runtime.config import RunConfig, load_run_config
from runtime.config.describe import leaf_keys

BASE = """\
model: {path: x}
scheduler:
  max_num_seqs: 2
sampling: {seed: 1}
requests: [{prompt: é}]
"""


def test_output_is_the_same_run_again(call, run_file, tmp_path):
    path = run_file(BASE)
    status, out, _ = call("show-config", "--config", path, "--set", "cache.memory=1GiB")
    assert status == 0
    again = tmp_path / "again.yaml"
    again.write_text(out, encoding="utf-8")
    config, _ = load_run_config(str(again), [], {})
    assert config == load_run_config(str(path), ["cache.memory=1GiB"], {})[0]
    assert list(YAML(typ="safe").load(out)) == list(RunConfig.model_fields)


def test_explain_has_a_line_per_value(call, run_file, monkeypatch):
    monkeypatch.setenv("STEPGRAPH_CACHE__BLOCK_SIZE", "8")
    path = run_file(BASE)
    status, out, _ = call(
        *(
            "show-config",
            "--config",
            path,
            "--explain",
            "--model",
            "m",
            "--set",
            "graphs.mixed=eager",
        )
    )
    assert status == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert rows["model.path"] == ["m", "flag", "--model"]
    assert rows["scheduler.max_num_seqs"] == ["2", "yaml", f"{path}:3"]
    assert rows["cache.block_size"] == ["8", "environment", "STEPGRAPH_CACHE__BLOCK_SIZE"]
    assert rows["graphs.mixed"] == ["eager", "flag", "--set", "graphs.mixed"]
    assert rows["cache.prefix_caching"] == ["true", "default"]
    assert rows["model.tokenizer"] == ["null", "default"]
    assert rows["sampling.seed"] == ["1", "yaml", f"{path}:4"]
    assert rows["requests"] == ["(1", "requests)", "yaml", f"{path}:5"]
    known = {".".join(key) for key in leaf_keys(RunConfig)}
    assert known - set(rows) == {"sampling"}


def test_values_are_not_wrapped_and_the_limits_of_the_answer_are_said(call, tmp_path):
    words = "word " * 60
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{path: {tmp_path}/{'x' * 90}}}\nrequests: [{{prompt: {words}}}]\n")
    status, out, err = call("show-config", "--config", path)
    assert status == 0
    assert f"\n  path: {tmp_path}/{'x' * 90}\n" in out
    assert f"prompt: {words.strip()}\n" in out
    assert err.count("\n") == 1
    assert "stepgraph check" in err


def test_what_a_package_path_resolves_to(call):
    import rich

    folder = rich.__path__[0]
    for flags in ([], ["--explain"]):
        _, out, _ = call("show-config", "--model", "package:rich/py.typed", *flags)
        assert f"{folder}/py.typed" in out


@pytest.mark.case("CL01")
def test_false_is_shown_with_its_line(call, run_file):
    path = run_file("model: {path: x}\ncache:\n  prefix_caching: false\n")
    _, out, _ = call("show-config", "--config", path, "--explain")
    row = next(line for line in out.splitlines() if line.startswith("cache.prefix_caching"))
    assert row.split() == ["cache.prefix_caching", "false", "yaml", f"{path}:3"]


def test_errors_are_those_of_generate(call, run_file):
    status, out, err = call("show-config", "--config", run_file("model: {}\n"))
    assert (status, out) == (2, "")
    assert "model.path: missing; it must be a string" in err
