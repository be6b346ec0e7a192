"""tools/replay.py and the replay that it is made of, over traces of tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime import Runtime, RuntimeConfig
from runtime.errors import ConfigError
from runtime.observe.trace_reader import read_trace
from runtime.workbench.replay import replay_config
from tests.builders import write_config
from tools import replay as tool

PROMPTS = [[5, 6, 7, 8, 9] * 4, [5, 6, 7, 8, 9] * 4 + [3], [11] * 30, [12, 13]]
PARAMS = [
    {"max_tokens": 24, "temperature": 0, "ignore_eos": True},
    {"max_tokens": 24, "temperature": 0.9, "seed": 5},
    {"max_tokens": 20, "temperature": 0, "repetition_penalty": 1.3, "ignore_eos": True},
    {"max_tokens": 9, "temperature": 0, "min_tokens": 9},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("model") / "tiny", eos_token_id=list(range(2, 30)))


def traced(model: Path, path: Path, *, overlap: bool = False) -> Path:
    """Of four requests in a pool that is too small for them: prefix hits, chunks, preemptions."""
    config = RuntimeConfig(
        model={"path": str(model), "format": "dummy", "max_model_len": 64},
        scheduler={"max_num_batched_tokens": 16, "max_num_seqs": 4},
        cache={"num_blocks": 18, "block_size": 4},
        engine={"threads": 1, "overlap": overlap},
        observe={"trace": str(path)},
    )
    with Runtime(config) as runtime:
        runtime.generate(PROMPTS, PARAMS)
        assert runtime.stats().preemptions > 0, "the pool is too large for this test"
        assert runtime.stats().cached_tokens > 0
        assert (runtime.stats().steps_ahead > 0) == overlap
    return path


@pytest.fixture(scope="module")
def trace(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced(model, tmp_path_factory.mktemp("trace") / "t.jsonl")


def run(*args: object) -> int:
    return tool.main([str(arg) for arg in args])


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["attention.backend=torch_paged"],
        ["graphs.decode=eager"],
        ["graphs.decode=emulated", "graphs.mixed=emulated"],
    ],
)
def test_the_schedule_runs_again_on_anything(trace, tmp_path, capsys, sets) -> None:
    out = tmp_path / "f.json"
    words = [word for text in sets for word in ("--set", text)]
    assert run(trace, *words, "--json", out, "--assert-equal") == 0
    found = json.loads(out.read_text())
    steps = read_trace(str(trace)).steps
    assert found["num_steps"] == len(steps)
    assert found["num_tokens"] == sum(len(line.tokens) for line in steps)
    assert found["differences"] == []
    assert "all equal" in capsys.readouterr().out


def test_a_trace_of_steps_that_ran_ahead(model, tmp_path) -> None:
    """Its schedules feed tokens on the device, and hold rows behind a stop."""
    path = traced(model, tmp_path / "t.jsonl", overlap=True)
    assert any(line.feeds for line in read_trace(str(path)).steps)
    assert run(path, "--assert-equal") == 0
    assert run(path, "--assert-equal", "--set", "engine.overlap=false") == 0


def test_a_token_that_differs_is_told_with_its_margin(trace, tmp_path, capsys) -> None:
    lines = trace.read_text().splitlines()
    number = max(i for i, line in enumerate(lines) if '"ended":[{"request_id":"req-0"' in line)
    step = json.loads(lines[number])
    sampling = [r for r, s in zip(step["request_ids"], step["samples"], strict=True) if s]
    at = sampling.index("req-0")
    token_id = step["tokens"][at]
    step["tokens"][at] = (token_id + 1) % 128
    spoiled, out = tmp_path / "t.jsonl", tmp_path / "f.json"
    spoiled.write_text("\n".join([*lines[:number], json.dumps(step), *lines[number + 1 :]]) + "\n")
    assert run(spoiled, "--json", out) == 0
    (found,) = json.loads(out.read_text())["differences"]
    assert found["margin"] > 0, "greedy: its own token is the most likely one"
    assert found == {
        "step": step["step"],
        "request_id": "req-0",
        "output_index": 23,
        "traced": (token_id + 1) % 128,
        "replayed": token_id,
        "margin": found["margin"],
        "kind": found["kind"],
    }
    shown = capsys.readouterr().out
    assert "1 differ" in shown
    assert f"step {step['step']} (" in shown
    assert "req-0, output token 23" in shown
    assert run(spoiled, "--assert-equal") == 1
    assert run(spoiled, "--assert-equal", "--steps", step["step"]) == 0, "it comes later"


def test_other_weights_give_other_tokens_and_each_is_judged_alone(trace, tmp_path, capsys) -> None:
    out = tmp_path / "f.json"
    assert run(trace, "--set", "model.seed=3", "--json", out) == 0
    found = json.loads(out.read_text())
    assert 10 < len(found["differences"]) <= found["num_tokens"]
    assert "the first: step " in capsys.readouterr().out


class TestTrouble:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--set", "cache.num_blocks=9"], "--set cache.num_blocks: is the trace's own"),
            (["--set", "observe.trace=x"], "--set observe.trace: is the trace's own"),
            (["--set", "nonsense.key=1"], "nonsense"),
            (["--json", "/nowhere/f"], "--json /nowhere/f: cannot be written"),
            (["--model", "/nowhere"], "/nowhere"),
        ],
    )
    def test_bad_input_is_one_error(self, trace, capsys, args, message) -> None:
        assert run(trace, *args) in (2, 3)
        err = capsys.readouterr().err
        assert message in err
        assert err.count("error:") == 1

    def test_another_model_is_refused(self, trace, tmp_path, capsys) -> None:
        other = write_config(tmp_path / "other", num_hidden_layers=1, vocab_size=100)
        assert run(trace, "--model", other) == 2
        assert "another model: vocab_size 128, here 100; num_layers 2, here 1" in (
            capsys.readouterr().err
        )

    def test_a_trace_without_its_beginning_is_refused(self, trace, tmp_path, capsys) -> None:
        lines = trace.read_text().splitlines(keepends=True)
        path = tmp_path / "t"
        path.write_text(lines[0].replace('"part":0', '"part":3') + "".join(lines[5:]))
        assert run(path) == 2
        assert "the beginning of the trace was dropped" in capsys.readouterr().err

    def test_logits_processors_are_in_no_trace(self, trace, tmp_path, capsys) -> None:
        path = tmp_path / "t"
        text = trace.read_text()
        path.write_text(text.replace('"row":0,', '"num_logits_processors":1,"row":0,', 1))
        assert run(path) == 2
        assert "has logits processors" in capsys.readouterr().err

    def test_a_step_that_failed_ends_the_replay(self, trace, tmp_path, capsys) -> None:
        path = tmp_path / "t"
        text = trace.read_text()
        path.write_text(text.replace('"step":3,', '"error":"no memory","step":3,', 1))
        assert run(path) == 0
        shown = capsys.readouterr().out
        assert "3 steps" in shown
        assert "ended early: step 3 failed in the trace: no memory" in shown

    def test_a_header_that_says_nothing(self, trace) -> None:
        found = read_trace(str(trace))
        found.header.about.clear()
        with pytest.raises(ConfigError, match="does not say what ran"):
            replay_config(found, [], {})

    def test_a_trace_without_steps(self, trace, tmp_path, capsys) -> None:
        path = tmp_path / "t"
        path.write_text(trace.read_text().splitlines(keepends=True)[0])
        assert run(path) == 2
        assert "has no step" in capsys.readouterr().err
