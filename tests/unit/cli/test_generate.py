"""`stepgraph generate`: what it runs, prints and writes, and what it says where it cannot."""

import json
import logging
import os
import signal
from types import SimpleNamespace

import pytest

from runtime.cli import generate
from runtime.errors import BackendError, ConfigError, ModelError, StepError
from tests.unit.cli.fakes import REPLY, FakeRuntime

BASE = "model: {path: x}\nsampling: {max_tokens: 5}\n"


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_come_in_the_order_of_the_requests(call, opened, run_file):
    path = run_file(
        BASE + "requests:\n- prompt: first\n- {prompt: second, sampling: {max_tokens: 2}}\n"
        "- chat: [{role: user, content: third}]\n- token_ids: [1, 2]\n"
    )
    status, out, err = call("generate", "--config", path)
    assert status == 0
    assert out == (
        f"[0] first\n{REPLY[:5]}\n\n[1] second\n{REPLY[:2]}\n\n"
        f"[2] third\n{REPLY[:5]}\n\n[3] 2 token ids\n{REPLY[:5]}\n\n"
    )
    for row in ("requests", "prompt tokens", "cached tokens", "output tokens", "steps"):
        assert row in err
    for row in ("mixed steps", "tokens/s", "TTFT p50 / p99", "ITL p50 / p99", "KV blocks used"):
        assert row in err
    assert "7 of 50" in err
    assert "12.5%" in err
    assert "10 (25%)" in err
    assert opened[0].is_closed


def test_streaming_prints_the_same(call, opened, run_file):
    path = run_file(BASE + "requests: [{prompt: a}, {prompt: b, sampling: {max_tokens: 1}}]\n")
    whole = call("generate", "--config", path)[1]
    assert call("generate", "--config", path, "--stream")[1] == whole


def test_flags_replace_the_requests_of_the_file(call, opened, run_file, tmp_path):
    path = run_file(BASE + "requests: [{prompt: in the file}]\n")
    more = tmp_path / "in.jsonl"
    more.write_text(
        '{"prompt": "c", "temperature": 0, "sampling": {"seed": 1}, "priority": 3}\n\n'
        '{"token_ids": [5], "cache_salt": "s"}\n',
        encoding="utf-8",
    )
    status, _, _ = call(
        *("generate", "--config", path, "--prompt", "a", "--prompt", "b"),
        *("--input", more, "--max-tokens", 3, "--set", "scheduler.max_num_seqs=2"),
    )
    assert status == 0
    assert [prompt for prompt, _ in opened[0].added] == ["a", "b", "c", [5]]
    assert opened[0].added[2][1] == {
        "max_tokens": 3,
        "temperature": 0,
        "seed": 1,
        "priority": 3,
        "cache_salt": None,
        "tools": None,
    }
    assert opened[0].added[3][1]["cache_salt"] == "s"
    assert opened[0].config.scheduler.max_num_seqs == 2


def test_a_model_is_enough(call, opened):
    status, out, _ = call("generate", "--model", "some/folder", "--prompt", "hi")
    assert status == 0
    assert out == f"[0] hi\n{REPLY}\n\n"
    assert opened[0].config.model.path == "some/folder"


def test_chats_and_prompts_keep_their_order(call, opened):
    args = ("--prompt", "a", "--chat", "b", "--chat", "", "--prompt", "d")
    status, out, _ = call("generate", "--model", "x", *args)
    assert status == 0
    chats = [[{"role": "user", "content": text}] for text in ("b", "")]
    assert [prompt for prompt, _ in opened[0].added] == ["a", *chats, "d"]
    assert [line for line in out.splitlines() if line.startswith("[")] == [
        *("[0] a", "[1] b", "[2] ", "[3] d")
    ]


class TestNotes:
    """Lines on standard error that a user should not have to look for."""

    @pytest.mark.parametrize(
        ("args", "count"),
        [
            (["--prompt", "silent"], "an answer is"),
            (["--prompt", "silent", "--prompt", "very silent", "--chat", "x"], "2 answers are"),
            (["--prompt", "loud"], None),
            (["--chat", "silent"], None),
        ],
    )
    def test_a_raw_prompt_that_ends_at_once(self, call, opened, args, count):
        status, _, err = call("generate", "--model", "x", *args)
        assert status == 0
        hints = [line for line in err.splitlines() if "hint" in line]
        assert len(hints) == (count is not None)
        if count:
            assert hints[0].startswith(f"stepgraph: hint: {count} empty, since the model ended at")
            assert "--chat" in hints[0]

    @pytest.mark.parametrize("tokenizer", [None, SimpleNamespace(has_chat_template=False)])
    def test_no_hint_without_a_chat_template(self, call, monkeypatch, tokenizer):
        fake = FakeRuntime(None)
        fake.tokenizer = tokenizer
        monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
        _, _, err = call("generate", "--model", "x", "--prompt", "silent")
        assert "hint" not in err

    def test_quiet_still_says_what_failed(self, call, opened):
        args = ("--prompt", "", "--prompt", "good", "--prompt", "fail", "--quiet")
        assert call("generate", "--model", "x", *args) == (
            1,
            "",
            "stepgraph: error: request 0: prompt: must not be empty\n"
            "stepgraph: error: request 2: logits are not finite\n",
        )

    def test_quiet_with_an_output_says_where_the_errors_are(self, call, opened, tmp_path):
        path = tmp_path / "out.jsonl"
        args = ("--prompt", "", "--prompt", "fail", "--quiet", "--output", path)
        assert call("generate", "--model", "x", *args) == (
            *(1, ""),
            f"stepgraph: 2 requests failed; their errors are in {path}\n",
        )

    @pytest.mark.parametrize(
        ("sampling", "warns"),
        [
            ("{n: 2, temperature: 0}", True),
            ("{n: 2}", False),
            ("{n: 2, temperature: 0.5}", False),
            ("{temperature: 0}", False),
        ],
    )
    def test_samples_that_are_equal(self, call, opened, run_file, sampling, warns):
        path = run_file(f"model: {{path: x}}\nsampling: {sampling}\n")
        args = ("--prompt", "a", "--prompt", "b", "--quiet")
        _, _, err = call("generate", "--config", path, *args)
        expected = "stepgraph: warning: request 0: its 2 samples are equal at temperature 0\n"
        assert err == (expected if warns else "")

    @pytest.mark.parametrize(
        ("flags", "heard"),
        [
            ([], ["info", "warning"]),
            (["--quiet"], ["warning"]),
            (["-v"], ["debug", "info", "warning"]),
            (["--verbose"], ["debug", "info", "warning"]),
        ],
    )
    def test_how_much_is_said_at_the_start(self, call, monkeypatch, flags, heard):
        def open_talking(config):
            log = logging.getLogger("runtime.front.build")
            for level in ("debug", "info", "warning"):
                getattr(log, level)("this is %s", level)
            return FakeRuntime(config)

        monkeypatch.setattr(generate, "open_runtime", open_talking)
        _, _, err = call("generate", "--model", "x", "--prompt", "a", "--no-progress", *flags)
        said = [line for line in err.splitlines() if "this is" in line]
        assert said == [f"stepgraph: this is {level}" for level in heard]

    def test_quiet_and_verbose_exclude_each_other(self, call):
        assert call("generate", "--model", "x", "--quiet", "-v")[0] == 2


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_without_a_tokenizer_the_answer_is_its_token_ids(call, tmp_path, monkeypatch, stream):
    fake = FakeRuntime(None)
    fake.tokenizer = None
    monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
    source = tmp_path / "in.jsonl"
    source.write_text('{"token_ids": [1, 2], "max_tokens": 3}\n')
    _, out, _ = call("generate", "--model", "x", "--input", source, *stream)
    ids = "".join(f"{ord(c)} " for c in REPLY[:3])
    assert out == f"[0] 2 token ids\n{ids}\n\n"


def test_quiet_prints_nothing(call, opened, tmp_path):
    out_file = tmp_path / "out.jsonl"
    args = ("generate", "--model", "x", "--prompt", "a", "--quiet", "--output", out_file)
    assert call(*args) == (0, "", "")
    assert lines_of(out_file)[0]["text"] == REPLY


def test_no_progress_keeps_answers_and_table(call, opened):
    _, out, err = call("generate", "--model", "x", "--prompt", "a", "--no-progress")
    assert REPLY in out
    assert "generating" not in err
    assert "tokens/s" in err


@pytest.mark.case("SC19")
def test_a_long_input_is_fed_as_it_is_needed(call, opened, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "p"}\n' * 40)
    args = ("generate", "--model", "x", "--input", path, "--set", "scheduler.max_num_seqs=3")
    assert call(*args, "--quiet")[0] == 0
    assert len(opened[0].added) == 40
    assert opened[0].most_at_once == 6
    assert call(*args, "--quiet", "--set", "scheduler.order=priority")[0] == 0
    assert opened[1].most_at_once == 40


class TestOutputFile:
    def test_a_line_per_request(self, call, opened, tmp_path):
        path = tmp_path / "out.jsonl"
        args = ("--prompt", "a", "--prompt", "b", "--max-tokens", "2", "--output", path)
        assert call("generate", "--model", "x", *args)[0] == 0
        lines = lines_of(path)
        assert [line["index"] for line in lines] == [0, 1]
        first = lines[0]
        assert first["text"] == REPLY[:2] == "hé"
        assert first["token_ids"] == [ord("h"), ord("é")]
        assert (first["finish_reason"], first["stop_reason"], first["error"]) == (
            *("length", None, None),
        )
        assert (first["num_prompt_tokens"], first["num_cached_tokens"]) == (3, 2)
        assert (first["num_output_tokens"], first["num_preemptions"]) == (2, 0)
        assert (first["queue_s"], first["ttft_s"], first["e2e_s"]) == (0.001, 0.01, 0.05)

    def test_lines_are_written_as_requests_end(self, call, opened, tmp_path, monkeypatch):
        path, seen = tmp_path / "out.jsonl", []
        fake = FakeRuntime(None)
        fake.before_step = lambda _: seen.append(len(path.read_text().splitlines()))
        monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
        source = tmp_path / "in.jsonl"
        source.write_text('{"prompt": "a", "max_tokens": 1}\n{"prompt": "b", "max_tokens": 4}\n')
        assert call("generate", "--model", "x", "--input", source, "--output", path)[0] == 0
        assert seen == [0, 1, 1, 1]

    @pytest.mark.parametrize("target", ["gone/out.jsonl", "."])
    def test_what_cannot_be_written_is_said_before_the_model_loads(
        self, call, opened, tmp_path, target
    ):
        status, _, err = call(
            *("generate", "--model", "x", "--prompt", "a", "--output", tmp_path / target)
        )
        assert status == 2
        assert err.startswith(f"stepgraph: error: --output {tmp_path / target}: cannot be written:")
        assert opened == []

    def test_an_older_file_outlives_a_model_that_cannot_be_loaded(
        self, call, tmp_path, monkeypatch
    ):
        path = tmp_path / "out.jsonl"
        path.write_text("precious\n")
        monkeypatch.setattr(generate, "open_runtime", _raiser(ModelError("model.path: gone")))
        assert call("generate", "--model", "x", "--prompt", "a", "--output", path)[0] == 3
        assert path.read_text() == "precious\n"

    def test_an_older_file_is_replaced(self, call, opened, tmp_path):
        path = tmp_path / "out.jsonl"
        path.write_text("old\n" * 50)
        assert call("generate", "--model", "x", "--prompt", "a", "--output", path)[0] == 0
        assert [line["index"] for line in lines_of(path)] == [0]

    def test_the_input_is_not_overwritten(self, call, opened, tmp_path):
        path = tmp_path / "both.jsonl"
        path.write_text('{"prompt": "a"}\n')
        status, _, err = call("generate", "--model", "x", "--input", path, "--output", path)
        assert (status, "is the input file" in err) == (2, True)
        assert path.read_text() == '{"prompt": "a"}\n'

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
    def test_a_full_disk(self, call, opened):
        status, _, err = call("generate", "--model", "x", "--prompt", "a", "--output", "/dev/full")
        assert status == 5
        assert err.endswith("stepgraph: error: /dev/full: No space left on device\n")
        assert opened[0].is_closed

    def test_half_a_character_in_the_input_is_written_as_json_spells_it(
        self, call, opened, tmp_path
    ):
        source, path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text('{"prompt": "a"}\n{"\\ud800": 1}\n')
        args = ("--input", source, "--output", path)
        assert call("generate", "--model", "x", *args)[0] == 1
        errors = [line["error"] for line in lines_of(path)]
        assert ":2: \ud800: unknown key; " in errors[0]


class TestFailures:
    def test_a_request_that_fails_harms_no_other(self, call, opened, tmp_path):
        source, path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_bytes(
            b'{"prompt": "good"}\n'
            b'{"prompt": ""}\n'
            b'{"prompt": "fail"}\n'
            b'{"promt": "x"}\n'
            b"{broken\n"
            b'["list"]\n'
            b'{"prompt": 3}\n'
            b'{"prompt": "x", "max_tokens": 0}\n'
            b'{"prompt": "x", "sampling": 3}\n'
            b'{"prompt": "x", "temperature": NaN}\n'
            b"\xff\n"
            b'{"prompt": "also good", "max_tokens": 1}\n'
        )
        status, out, _ = call("generate", "--model", "x", "--input", source, "--output", path)
        assert status == 1
        lines = {line["index"]: line for line in lines_of(path)}
        assert sorted(lines) == list(range(12))
        assert [i for i, line in lines.items() if line["finish_reason"] != "error"] == [11, 0]
        errors = [lines[i]["error"] for i in range(1, 11)]
        assert errors[0] == f"{source}:2: prompt: must not be empty"
        assert errors[1] == "logits are not finite"
        for number, error in enumerate(errors[2:], start=4):
            assert error.startswith(f"{source}:{number}: ")
        for part, error in zip(
            [
                *("did you mean prompt?", "no valid JSON", "must be a JSON object"),
                *("prompt: must be a string", "max_tokens: must be an integer >= 1"),
                *(
                    "sampling: must be a mapping",
                    "temperature: must be a finite number",
                    "valid UTF-8",
                ),
            ],
            errors[2:],
            strict=True,
        ):
            assert part in error
        assert "[2] fail\nerror: logits are not finite\n" in out

    def test_an_input_without_a_request_loads_no_model(self, call, opened, tmp_path):
        source = tmp_path / "in.jsonl"
        source.write_text('{"promt": "x"}\n')
        status, _, err = call("generate", "--model", "x", "--input", source)
        assert status == 2
        assert "no line of --input" in err
        assert f"{source}:1: promt: unknown key; did you mean prompt?" in err
        assert opened == []

    def test_nothing_to_run(self, call, opened, run_file):
        status, _, err = call("generate", "--config", run_file(BASE))
        assert status == 2
        assert (
            "nothing to run: give --chat TEXT, --prompt TEXT, --input F.jsonl, or requests:" in err
        )

    def test_an_input_that_cannot_be_read(self, call, opened, tmp_path):
        status, _, err = call("generate", "--model", "x", "--input", tmp_path / "gone")
        assert status == 2
        assert f"--input {tmp_path / 'gone'}: cannot be read: No such file" in err

    @pytest.mark.parametrize("number", ["0", "-1", "1k"])
    def test_max_tokens_below_one(self, call, opened, number):
        args = ("--prompt", "a", "--max-tokens", number)
        status, _, err = call("generate", "--model", "x", *args)
        assert status == 2
        assert "--max-tokens" in err

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (ConfigError("graphs.decode: no"), 2),
            (ModelError("model.path: gone"), 3),
            (BackendError("attention.backend: none"), 4),
            (StepError("broke"), 5),
            (KeyboardInterrupt(), 130),
        ],
    )
    def test_exit_status_of_what_ends_the_command(self, call, monkeypatch, error, status):
        monkeypatch.setattr(generate, "open_runtime", _raiser(error))
        found, out, err = call("generate", "--model", "x", "--prompt", "a")
        assert found == status
        assert out == ""
        assert "Traceback" not in err
        if str(error):
            assert err == f"stepgraph: error: {error}\n"

    def test_a_bug_of_ours_keeps_its_traceback(self, monkeypatch):
        from runtime.cli.main import run

        monkeypatch.setattr(generate, "open_runtime", _raiser(AssertionError("bug")))
        with pytest.raises(AssertionError, match="bug"):
            run(["generate", "--model", "x", "--prompt", "a"])


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_loses_nothing(call, tmp_path, monkeypatch, signum, status):
    fake, path, source = FakeRuntime(None), tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    source.write_text(
        '{"prompt": "a", "max_tokens": 1}\n{"prompt": "b"}\n{"prompt": "c"}\n{"prompt": "d"}\n'
    )

    def interrupt_third_step(runtime):
        if runtime._steps == 2:
            os.kill(os.getpid(), signum)

    fake.before_step = interrupt_third_step
    monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
    before = signal.getsignal(signum)
    found, out, err = call(
        *("generate", "--model", "x", "--input", source, "--output", path),
        *("--set", "scheduler.max_num_seqs=1"),
    )
    assert found == status
    assert signal.getsignal(signum) is before
    assert fake.is_closed
    lines = {line["index"]: line for line in lines_of(path)}
    assert [lines[i]["finish_reason"] for i in range(4)] == ["length", *["abort"] * 3]
    assert lines[1]["text"] == REPLY[:3]
    assert lines[1]["token_ids"] == [ord(c) for c in REPLY[:3]]
    assert lines[3]["text"] == ""
    assert "(interrupted)" in out
    assert "interrupted" in err
    assert "tokens/s" in err


def test_a_second_interrupt_breaks_off(call, monkeypatch):
    fake = FakeRuntime(None)

    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    fake.before_step = twice
    monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
    status, _, err = call("generate", "--model", "x", "--prompt", "a", "--no-progress")
    assert status == 130
    assert "stepgraph: interrupted" in err
    assert fake.is_closed


def test_an_engine_that_loses_requests_is_an_error(call, monkeypatch):
    fake = FakeRuntime(None)
    fake.before_step = lambda runtime: runtime._live.clear()
    monkeypatch.setattr(generate, "open_runtime", lambda config: _with(fake, config))
    status, _, err = call("generate", "--model", "x", "--prompt", "a")
    assert status == 5
    assert "stopped with 1 requests unfinished" in err


def _with(fake, config):
    fake.config = config
    return fake


def _raiser(error):
    def open_nothing(_):
        raise error

    return open_nothing
