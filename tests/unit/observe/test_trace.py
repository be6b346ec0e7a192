"""Schedule traces: what a TraceWriter writes, and what is read back."""

import json
import logging
import os
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest

from runtime.data.step import SchedulerOutput
from runtime.errors import ConfigError
from runtime.observe import trace as trace_module
from runtime.observe.trace import Observers, TraceWriter, check_trace_path
from runtime.observe.trace_lines import StepLine, TracedRow, step_of
from runtime.observe.trace_reader import read_trace
from tests.unit.observe.test_steps import observed
from tests.unit.scheduler.fake import make_request

TIGHT = {"num_blocks": 8, "max_model_len": 32}
"""A pool in which three long answers get in each other's way."""


def records_of(runs_ahead=False, fails_at=None, **sampling):
    requests = [make_request(str(i), [i] * 8, 20, **sampling) for i in range(3)]
    return observed(*requests, runs_ahead=runs_ahead, fails_at=fails_at, **TIGHT)[1]


def write(path, records, max_bytes=1 << 20, num_files=3):
    writer = TraceWriter(str(path), {"a": 1}, max_bytes=max_bytes, num_files=num_files)
    for record in records:
        writer.on_step(record)
    writer.close()
    return read_trace(str(path))


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_every_schedule_is_read_back_as_it_was(tmp_path, runs_ahead):
    records = records_of(runs_ahead)
    trace = write(tmp_path / "t", records)
    assert (trace.is_first, trace.is_closed, trace.header.about) == (True, True, {"a": 1})
    assert any(line.new for line in trace.steps[1:]), "nothing came back after a preemption"
    assert any(line.feeds for line in trace.steps) == runs_ahead
    for record, line in zip(records, trace.steps, strict=True):
        found = step_of(line)
        for field in fields(SchedulerOutput):
            given, read = getattr(record.so, field.name), getattr(found, field.name)
            np.testing.assert_equal(read, given, field.name)
            if isinstance(given, np.ndarray):
                assert read.dtype == given.dtype


def test_a_line_tells_the_reasons_sizes_times_and_ends(tmp_path):
    records = records_of()
    steps = write(tmp_path / "t", records).steps
    for record, line in zip(records, steps, strict=True):
        assert line.request_ids == record.request_ids
        assert line.shape == record.ro.shape
        assert line.tokens == record.ro.token_ids.tolist()
        assert line.preempted == record.notes.preempted
        assert line.held_back == record.notes.held_back
        assert (line.running, line.waiting) == (record.num_running, record.num_waiting)
        assert line.blocks_used == record.num_blocks_used
        assert line.times == pytest.approx(record.times, abs=1e-6)
    assert any(line.preempted for line in steps)
    ended = {end.request_id: end for line in steps for end in line.ended}
    assert {end.reason for end in ended.values()} == {"length"}
    assert sorted(ended) == ["0", "1", "2"]
    assert sum(end.num_preemptions for end in ended.values()) > 0
    assert all(end.arrival_s <= end.first_scheduled_s for end in ended.values())


def test_a_step_that_failed_is_a_line_with_its_error(tmp_path):
    steps = write(tmp_path / "t", records_of(fails_at=2)).steps
    (failed,) = [line for line in steps if line.error]
    assert failed.error == "step failed: RuntimeError: no"
    assert (failed.step, failed.shape, failed.tokens) == (2, None, [])
    assert failed.ended[0].reason == "error"
    assert failed.ended[0].error == failed.error


def test_the_digest_is_of_all_tokens_up_to_there(tmp_path):
    records = records_of()
    same, again = write(tmp_path / "a", records), write(tmp_path / "b", records_of())
    assert [line.digest for line in same.steps] == [line.digest for line in again.steps]
    other = replace(records[1].ro, token_ids=records[1].ro.token_ids + 1)
    changed = write(tmp_path / "c", [records[0], replace(records[1], ro=other), *records[2:]])
    assert changed.steps[0].digest == same.steps[0].digest
    assert all(a.digest != b.digest for a, b in zip(changed.steps[1:], same.steps[1:], strict=True))


def test_params_keep_what_is_no_default(tmp_path):
    given = {
        "temperature": 0.5,
        "logit_bias": {3: 1.5},
        "stop": ("x",),
        "seed": 7,
        "structured_output": {"regex": "a+"},
        "stop_token_ids": (4,),
    }
    records = records_of(**given)
    (line, *_) = write(tmp_path / "t", records).steps
    assert set(line.new[0].params) == {*given, "max_tokens"}
    assert step_of(line).new_rows[0].params == records[0].so.new_rows[0].params


def test_logits_processors_are_counted_since_they_are_functions(tmp_path):
    records = records_of(logits_processors=(lambda ids, logits: logits,))
    (line, *_) = write(tmp_path / "t", records).steps
    assert line.new[0].num_logits_processors == 1
    assert "logits_processors" not in line.new[0].params


class TestRotation:
    def test_parts_are_one_trace(self, tmp_path):
        records = records_of()
        whole = write(tmp_path / "whole", records)
        cut = write(tmp_path / "t", records, max_bytes=4000, num_files=50)
        names = sorted(os.listdir(tmp_path), key=len)
        assert len(names) > 4
        told = [[(line.step, line.tokens, line.digest) for line in t.steps] for t in (cut, whole)]
        assert told[0] == told[1]
        assert cut.is_first
        assert cut.is_closed
        for name in names:
            assert name == "whole" or os.path.getsize(tmp_path / name) < 4000 + 2000

    def test_the_oldest_is_dropped(self, tmp_path):
        records = records_of()
        cut = write(tmp_path / "t", records, max_bytes=2500, num_files=2)
        assert sorted(os.listdir(tmp_path)) == ["t", "t.1"]
        assert not cut.is_first
        steps = [line.step for line in cut.steps]
        assert steps == list(range(steps[0], len(records)))
        assert steps[0] > 0

    def test_one_file_is_begun_again(self, tmp_path):
        cut = write(tmp_path / "t", records_of(), max_bytes=2500, num_files=1)
        assert os.listdir(tmp_path) == ["t"]
        assert cut.header.part > 0

    def test_a_part_of_another_trace_is_left_out(self, tmp_path):
        records = records_of()
        write(tmp_path / "t", records, max_bytes=2500, num_files=2)
        (tmp_path / "t.1").replace(tmp_path / "other")
        write(tmp_path / "u", records, max_bytes=2500, num_files=2)
        (tmp_path / "u.1").replace(tmp_path / "t.1")
        alone = read_trace(str(tmp_path / "t"))
        assert alone.steps[0].step > 0
        assert not alone.is_first


class TestTrouble:
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("odd")])
    def test_a_trace_that_cannot_go_on_ends_and_the_engine_does_not(
        self, tmp_path, monkeypatch, caplog, error
    ):
        def fail(writer, line):
            raise error

        writer = TraceWriter(str(tmp_path / "t"), {}, max_bytes=1 << 20, num_files=1)
        records = records_of()
        writer.on_step(records[0])
        monkeypatch.setattr(TraceWriter, "_write", fail)
        with caplog.at_level(logging.WARNING):
            for record in records[1:4]:
                writer.on_step(record)
            writer.close()
        (said,) = [r.getMessage() for r in caplog.records if r.name == trace_module.__name__]
        assert said.startswith(f"observe.trace: {tmp_path / 't'}: ")
        assert (getattr(error, "strerror", None) or "odd") in said
        assert "the engine goes on" in said
        monkeypatch.undo()
        trace = read_trace(str(tmp_path / "t"))
        assert not trace.is_closed
        assert [line.step for line in trace.steps] == [0]

    def test_text_that_json_cannot_hold_ends_the_trace(self, tmp_path, caplog):
        trace = write(tmp_path / "t", records_of(stop=("\ud800",)))
        assert trace.steps == ()
        assert "the trace ends" in caplog.text

    def test_what_was_written_can_be_read_before_the_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr(trace_module, "_FLUSH_EVERY_S", 0.0)
        writer = TraceWriter(str(tmp_path / "t"), {}, max_bytes=1 << 20, num_files=1)
        writer.on_step(records_of()[0])
        assert len(read_trace(str(tmp_path / "t")).steps) == 1
        writer.close()

    def test_places_that_cannot_be_written(self, tmp_path):
        with pytest.raises(ConfigError, match=r"^observe\.trace: .* is a folder"):
            check_trace_path(str(tmp_path))
        for make in (check_trace_path, lambda p: TraceWriter(p, {}, max_bytes=9, num_files=1)):
            with pytest.raises(ConfigError, match=r"^observe\.trace: .*/x/t: cannot be written"):
                make(str(tmp_path / "x" / "t"))
        check_trace_path(str(tmp_path / "new"))
        assert os.listdir(tmp_path) == [], "looking writes nothing"

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda t: t[:-10], r"t:\d+: the trace was cut inside this line"),
            (lambda t: t.replace(b'"version":1', b'"version":99', 1), "of version 99, and this"),
            (lambda t: b'{"prompt": "a"}\n', "is no schedule trace"),
            (lambda t: b"", "is no schedule trace"),
            (lambda t: b"\x00\xff\n", "is no schedule trace"),
            (lambda t: t.replace(b'"rows":[', b'"rows":["x",', 1), "t:2: no line of a trace: "),
            (lambda t: t.replace(b'"kind":"step"', b'"kind":"x"', 1), "t:2: no line of a trace: "),
            (lambda t: t.replace(b'"part":0', b'"part":"a"', 1), "t:1: no header of a trace: "),
            (lambda t: t + t.splitlines(True)[1], "a line behind the end"),
        ],
    )
    def test_a_file_that_is_no_whole_trace(self, tmp_path, spoil, message):
        path = tmp_path / "t"
        write(path, records_of())
        path.write_bytes(spoil(path.read_bytes()))
        with pytest.raises(ConfigError, match=message) as caught:
            read_trace(str(path))
        assert str(path) in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(ConfigError, match="nowhere: cannot be read: No such file"):
            read_trace(str(tmp_path / "nowhere"))


def test_observers_are_told_in_their_order():
    told = []

    class Observer:
        def __init__(self, name):
            self.name = name

        def on_step(self, record):
            told.append((self.name, record))

        def close(self):
            told.append(self.name)

    both = Observers(Observer("a"), Observer("b"))
    both.on_step("record")
    both.close()
    assert told == [("a", "record"), ("b", "record"), "a", "b"]


def test_the_fields_of_version_1_stand():
    """Readers elsewhere know these names: who changes one raises VERSION."""
    names = {field.name for field in msgspec.structs.fields(StepLine)}
    assert names == {
        *("step", "started_s", "request_ids", "rows", "scheduled", "computed", "samples"),
        *("running", "waiting", "blocks_used", "times", "shape", "tokens", "digest", "new"),
        *("freed", "blocks", "clear", "feeds", "preempted", "held_back", "row_errors", "late"),
        *("ended", "error"),
    }
    names = {field.name for field in msgspec.structs.fields(TracedRow)}
    assert names == {
        *("row", "request_id", "token_ids", "num_prompt_tokens", "num_computed_tokens"),
        *("block_ids", "params", "eos_token_ids", "num_logits_processors"),
    }


def test_lines_are_plain_json_with_their_kind(tmp_path):
    write(tmp_path / "t", records_of())
    lines = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header", *["step"] * (len(lines) - 2), "end"]
    assert lines[-1]["num_steps"] == len(lines) - 2
