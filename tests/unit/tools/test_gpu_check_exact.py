"""The sections of tools/gpu_check.py that compare find what they are there for; on the CPU, with
emulated graphs and strict fakes of the kernel libraries."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch.overrides import wrap_torch_function

from attention_backends import _flash_attention_2, torch_paged
from attention_backends._flash_attention_3 import num_splits
from attention_backends.triton_paged import Backend as TritonPaged
from graphs import GraphKey, GraphSet, Kind
from graphs._dispatch.dispatcher import Dispatcher
from runtime.runner import forward
from runtime.runner.buffers import InputBuffers
from runtime.runner.model_runner import ModelRunner
from runtime.sampling import sampler
from runtime.sampling.draw import draw_from_head
from tests.aside import needs_triton, run_aside
from tests.unit.attention_backends.fakes import fake_flash_attention_2 as fake2
from tests.unit.attention_backends.fakes import fake_flash_attention_3 as fake3
from tests.unit.attention_backends.test_flash_attention import install
from tests.unit.attention_backends.test_triton_paged import HERE as ATTENTION_TESTS
from tools._gpu_check import overlap
from tools._gpu_check.attention_numerics import check_backends, shapes_of
from tools._gpu_check.draws import check_draws
from tools._gpu_check.exactness import check_modes
from tools._gpu_check.overlap import check_overlap
from tools._gpu_check.report import FAIL, Deadline, Line, Report
from tools._gpu_check.scale import Scale, spec_of, tiny, whole

CPU = torch.device("cpu")
SCALE = tiny(CPU)
HOPPER, ADA = (9, 0), (8, 9)


pytestmark = pytest.mark.usefixtures("one_thread")


def lines_of(section, scale: Scale = SCALE) -> list[Line]:
    report = Report(None, {})
    section(scale, report, Deadline(float("inf")))
    return report.lines


def failed(lines: list[Line]) -> dict[str, str]:
    return {line.name: line.reason for line in lines if line.verdict == FAIL}


def with_flash(monkeypatch, chip, module, fake) -> Scale:
    """Only FlashAttention; the recorder of a capture sees a call of its fake as one launch."""
    install(monkeypatch, chip, module)
    for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func"):
        if hasattr(fake, name):
            launch = wrap_torch_function(_tensors_of)(getattr(fake, name))
            monkeypatch.setattr(sys.modules[module], name, launch)
    return replace(SCALE, backends=("flash_attention",), exact_dtypes=("bfloat16",))


def _tensors_of(**arguments):
    return [value for value in arguments.values() if isinstance(value, torch.Tensor)]


# -- graph modes ----------------------------------------------------------------------------------


def test_every_class_of_keys_is_replayed(monkeypatch):
    scale = with_flash(monkeypatch, ADA, "flash_attn", fake2)
    *_, line = lines_of(check_modes, scale)
    assert line.verdict == "ok", line
    assert line.name.endswith("decode=emulated mixed=emulated, every bucket")
    assert line.values["kv_classes"] == [1024, 1100]
    # decode steps of 1, 2, 4 and 8 in each class; others of 2, 4, 8 and 32
    assert line.values["buckets"] == 12


def test_splits_are_told_in_each_kind(monkeypatch):
    scale = with_flash(monkeypatch, HOPPER, "flash_attn_interface", fake3)
    scale = replace(scale, mixed_modes=("emulated", "emulated_ragged"))
    lines = lines_of(check_modes, scale)
    assert not failed(lines)
    *_, segmented, schedule, ragged = lines
    # 32 of one-token steps, that of the smallest ragged bucket among them
    assert segmented.values["splits"] == [1, 32]
    assert ragged.values["splits"] == [1, 32]
    assert schedule.values["ragged"] > 30


def test_a_bound_that_is_baked_too_small_fails(monkeypatch):
    scale = with_flash(monkeypatch, ADA, "flash_attn", fake2)
    backend = _flash_attention_2.FlashAttention2
    bake = backend._decode_plan
    monkeypatch.setattr(backend, "_check_bound", lambda self, plan, batch: None)
    monkeypatch.setattr(
        backend, "_decode_plan", lambda self, arrays, bound: bake(self, arrays, min(bound, 1024))
    )
    plan = backend.plan

    def planned(self, batch):
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_decode_plan", bake)
            return plan(self, batch)

    monkeypatch.setattr(backend, "plan", planned)
    reasons = failed(lines_of(check_modes, replace(scale, exact_rows=4, exact_sizes=(4, 32))))
    assert list(reasons) == [
        "flash_attention bfloat16 decode=emulated mixed=emulated, every bucket"
    ]


def test_a_bucket_that_no_step_reaches_fails(monkeypatch):
    right = Dispatcher.dispatch

    def wrong(self, num_tokens, num_reqs, max_query_len, max_seq_len=0):
        if max_seq_len > 1024:
            return GraphKey(Kind.EAGER, num_tokens, num_reqs)
        return right(self, num_tokens, num_reqs, max_query_len, max_seq_len)

    monkeypatch.setattr(Dispatcher, "dispatch", wrong)
    reasons = failed(lines_of(check_modes))
    named = [name for name in reasons if name.endswith("every bucket")]
    assert len(named) == len(reasons) == 2
    assert "decode(8 tokens, 8 requests, keys up to 1100)" in reasons[named[0]]


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.SEGMENTED])
def test_a_kind_that_is_never_replayed_fails(monkeypatch, kind):
    right = Dispatcher.dispatch

    def wrong(self, num_tokens, num_reqs, *sizes):
        key = right(self, num_tokens, num_reqs, *sizes)
        if key.kind is not kind:
            return key
        self.stats().buckets[str(key)] -= 1
        self.stats().buckets += type(self.stats().buckets)()  # without those of no steps
        return GraphKey(Kind.EAGER, num_tokens, num_reqs)

    monkeypatch.setattr(Dispatcher, "dispatch", wrong)
    reasons = failed(lines_of(check_modes))
    assert len(reasons) == 4
    assert next(iter(reasons.values())) == f"no ['{kind.value}'] step was replayed"


def test_graphs_that_are_not_captured_fail(monkeypatch):
    monkeypatch.setattr(ModelRunner, "_capture_graphs", lambda self: None)
    monkeypatch.setattr("graphs._capture.mode.CapturedMode.has", lambda self, key: True)
    monkeypatch.setattr(
        "graphs._capture.mode.CapturedMode.run", lambda self, key, call: call(_in_place)
    )
    reasons = failed(lines_of(check_modes))
    assert len(reasons) == 1
    assert next(iter(reasons.values())).startswith("never replayed: segmented(32 tokens)")


def test_a_replay_that_writes_no_keys_fails(monkeypatch):
    """Although the eager step before it has written the same."""
    run, write, kinds = GraphSet.run, forward.write_kv, []

    def noting(self, key, call):
        kinds.append(key.kind)
        return run(self, key, call)

    def wrong(*args):
        if kinds[-1] is Kind.EAGER:
            write(*args)

    monkeypatch.setattr(GraphSet, "run", noting)
    monkeypatch.setattr(forward, "write_kv", wrong)
    reasons = failed(lines_of(check_modes))
    assert any("padded_eager, every bucket" in name for name in reasons)


def _in_place(fn, *args):
    fn(*args)


@pytest.mark.parametrize("multiprocessors", [84, 108, 114, 132, 144])
def test_on_a_gpu_every_number_of_splits_is_captured(multiprocessors):
    scale = whole(torch.device("cuda"))
    spec = spec_of(scale.exact_config)
    backend = object.__new__(TritonPaged)
    backend._num_multiprocessors = multiprocessors

    def splits(shape, rows):
        return {backend._num_splits(shape, n) for n in rows}

    shape = replace(shapes_of(scale)["full"], num_kv_heads=spec.num_kv_heads)
    every = splits(shape, range(1, 4 * multiprocessors))
    assert every == {1, 2, 4, 8, 16, 32}
    assert splits(shape, scale.exact_sizes) == every
    full = shapes_of(scale)["full"]
    assert splits(full, scale.attention_rows) == every
    assert {num_splits(1, n) for n in scale.exact_sizes} == {8, 16, 32}
    # each of the most splits has keys to read
    assert min(scale.exact_context, scale.attention_keys) >= 32 * 128
    assert len(scale.exact_sizes) > 8


# -- attention ------------------------------------------------------------------------------------


def test_a_plan_that_is_not_refreshed_fails(monkeypatch):
    monkeypatch.setattr(torch_paged.Backend, "refresh", lambda self, plan, batch: None)
    reasons = failed(lines_of(check_backends))
    assert [name.partition(" ")[2] for name in reasons] == [
        f"{shape} captured decode" for shape in shapes_of(SCALE)
    ]


def test_a_backend_that_breaks_is_a_fail_and_the_others_are_tried(monkeypatch):
    def broken(self, batch):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(torch_paged.Backend, "plan", broken)
    lines = lines_of(check_backends)
    assert len(lines) == 20
    assert set(failed(lines).values()) == {"RuntimeError: no such kernel"}


@needs_triton
@pytest.mark.slow
def test_triton_interpreted():
    run_aside(ATTENTION_TESTS.parent / "tools" / "gpu_check_triton_cases.py", TRITON_INTERPRET="1")


# -- overlap --------------------------------------------------------------------------------------


def test_a_token_that_is_not_fed_fails(monkeypatch):
    monkeypatch.setattr(InputBuffers, "feed", lambda self, sampled, num_fed: None)
    reasons = failed(lines_of(check_overlap))
    assert set(reasons.values()) == {"requests got other tokens"}
    assert len(reasons) == 2


def test_an_engine_that_does_not_run_ahead_fails(monkeypatch):
    make = overlap.make_engine
    monkeypatch.setattr(overlap, "make_engine", lambda *a, **k: make(*a, **{**k, "overlap": False}))
    assert set(failed(lines_of(check_overlap)).values()) == {"no step was launched ahead"}


def test_where_rounding_may_differ_steps_are_the_same(monkeypatch):
    """What is demanded of bfloat16 rests on this."""
    scale = with_flash(monkeypatch, ADA, "flash_attn", fake2)
    launch, steps = ModelRunner.launch, []

    def noting(self, so):
        steps[-1].append((so.rows.tolist(), so.num_scheduled_tokens.tolist()))
        return launch(self, so)

    run = overlap.run_waves
    monkeypatch.setattr(overlap, "run_waves", lambda *a: steps.append([]) or run(*a))
    monkeypatch.setattr(ModelRunner, "launch", noting)
    [line] = lines_of(check_overlap, scale)
    assert line.verdict == "ok", line
    without, ahead = steps
    assert without == ahead
    assert line.values["hit_tokens"] > 0


# -- draws ----------------------------------------------------------------------------------------


def test_a_wrong_nucleus_fails(monkeypatch):
    def wrong(b, index, p):
        return draw_from_head(b, index, replace(p, top_p=p.top_p * 0.9))

    monkeypatch.setattr(sampler, "draw_from_head", wrong)
    reasons = failed(lines_of(check_draws))
    assert set(reasons) >= {"draws top-p float32", "draws top-p bfloat16"}
    assert not any("vocabulary" in name for name in reasons)


def test_rows_that_the_head_cannot_tell_are_among_the_draws():
    values = {line.name: line.values for line in lines_of(check_draws)}
    assert values["draws top-p float32"]["settled_late"] > 0
    assert values["draws top-p float32"]["differing_share"] == 0
