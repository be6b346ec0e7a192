import types

import numpy as np
import pytest
import torch

from attention_backends import NULL_BLOCK, TRASH_BLOCK, torch_paged
from runtime.errors import BackendError, StepError
from runtime.runner import forward
from tests.unit.attention_backends.reference import dense_attention
from tests.unit.runner.helpers import RandomSchedule, new_row, step

MODES = {
    "eager": {"decode": "eager", "mixed": "eager"},
    "padded_eager": {"decode": "padded_eager", "mixed": "padded_eager"},
    "emulated": {"decode": "emulated", "mixed": "emulated"},
}


def dense_logits(loaded, tokens):
    """[len(tokens), V] of the whole sequence at once, without pages, batches or rows."""

    def attend(layer, q, k, v):
        return dense_attention(loaded.attention_shapes[layer], q, k, v).to(q.dtype).flatten(1)

    with torch.inference_mode():
        ids = torch.tensor(tokens, dtype=torch.int32)
        hidden = loaded.model.forward(ids, torch.arange(len(tokens)), attend)
        return loaded.model.compute_logits(hidden)


def logged(runner, monkeypatch):
    """Record (row, position) -> logits of every row that is sampled."""
    seen, launch = {}, runner.sampler.launch

    def recording(logits, rows, num_tokens):
        for row, position, values in zip(rows.tolist(), num_tokens.tolist(), logits, strict=True):
            seen[row, position] = values.clone()
        return launch(logits, rows, num_tokens)

    monkeypatch.setattr(runner.sampler, "launch", recording)
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_random_schedules_give_the_logits_of_dense_attention(mode, make_runner, tiny, monkeypatch):
    runner = make_runner(graphs=MODES[mode])
    seen = logged(runner, monkeypatch)
    schedule = RandomSchedule(7)
    kinds = set()
    for _ in range(60):
        so = schedule.next_step()
        seen.clear()
        ro = runner.execute(so)
        kinds.add(ro.shape.kind)
        assert ro.shape.num_tokens == so.num_tokens
        assert ro.shape.num_tokens_padded >= so.num_tokens
        assert not ro.errors
        for (row, position), logits in seen.items():
            tokens = schedule.running[row]["tokens"]
            assert len(tokens) == position
            torch.testing.assert_close(logits, dense_logits(tiny, tokens)[-1], atol=1e-5, rtol=1e-4)
        assert len(seen) == len(ro.token_ids) == so.samples.sum()
        schedule.sampled(so, ro.token_ids)
    assert kinds >= ({"eager"} if mode == "eager" else {"decode", "segmented"})


@pytest.mark.parametrize("mode", MODES)
def test_modes_and_chunks_give_equal_tokens(mode, make_runner, tiny):
    tokens = [5, 9, 3, 22, 41, 8, 17, 30, 2, 11]
    expected = []
    for _ in range(6):
        expected.append(int(dense_logits(tiny, [*tokens, *expected])[-1].argmax()))
    for chunk in (1, 3, 10):
        runner = make_runner(graphs=MODES[mode])
        new = [new_row(0, tokens, block_ids=[5, 2, 9, 7])]
        for start in range(0, 10, chunk):
            count = min(chunk, 10 - start)
            ro = runner.execute(step([(0, start, count, start + count == 10)], new=new))
            new = []
        got = [int(ro.token_ids[0])]
        for position in range(10, 15):
            got.append(int(runner.execute(step([(0, position, 1, True)])).token_ids[0]))
        assert got == expected
        assert runner.states.token_ids[0, 10:16].tolist() == expected


@pytest.mark.case("SC01")
def test_a_step_of_unfinished_chunks_makes_no_logits(make_runner, monkeypatch):
    runner = make_runner()
    monkeypatch.setattr(
        runner, "_model", types.SimpleNamespace(forward=runner._model.forward)
    )  # no compute_logits: it must not be called
    ro = runner.execute(step([(0, 0, 4, False)], new=[new_row(0, range(10), block_ids=[2])]))
    assert ro.token_ids.tolist() == []
    assert ro.token_ids.dtype == np.int32


@pytest.mark.case("GP07")
@pytest.mark.parametrize("mode", ["padded_eager", "emulated"])
def test_padding_and_dummies_write_only_the_trash_block(mode, make_runner):
    runner = make_runner(graphs=MODES[mode])
    for layer in runner.kv:
        for tensor in layer:
            assert not tensor[NULL_BLOCK].any()
            assert not tensor[TRASH_BLOCK + 1 :].any()
    tokens = [3, 4, 5]
    new = [new_row(row, tokens, block_ids=[2 + row]) for row in range(3)]
    first = runner.execute(step([(r, 0, 3, True) for r in range(3)], new=new))
    before = [tensor[2].clone() for layer in runner.kv for tensor in layer]
    ro = runner.execute(step([(1, 3, 1, True), (2, 3, 1, True), (0, 3, 1, True)]))
    assert (ro.shape.num_reqs, ro.shape.num_reqs_padded, ro.shape.kind) == (3, 4, "decode")
    after = [tensor[2] for layer in runner.kv for tensor in layer]
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a[:3], b[:3])
        assert b[3].any()
    for layer in runner.kv:
        for tensor in layer:
            assert not tensor[NULL_BLOCK].any()
            assert not tensor[5:].any()
    assert len(set(first.token_ids.tolist())) == len(set(ro.token_ids.tolist())) == 1


@pytest.mark.parametrize("mode", ["padded_eager", "emulated"])
def test_nan_in_trash_and_stale_buffers_changes_no_token(mode, make_runner):
    clean, dirty = make_runner(graphs=MODES[mode]), make_runner(graphs=MODES[mode])
    schedule = RandomSchedule(11)
    for _ in range(30):
        so = schedule.next_step()
        for layer in dirty.kv:
            for tensor in layer:
                tensor[TRASH_BLOCK] = torch.nan
        for buffer in dirty._outputs.buffers.values():
            buffer.fill_(torch.nan)
        a, b = clean.execute(so), dirty.execute(so)
        assert a.token_ids.tolist() == b.token_ids.tolist()
        schedule.sampled(so, a.token_ids)


class TestCanary:
    @pytest.mark.parametrize("mode", MODES)
    def test_is_silent_on_a_sound_backend_and_changes_nothing(self, mode, make_runner):
        plain = make_runner(graphs=MODES["eager"])
        watched = make_runner(graphs=MODES[mode], engine={"padding_canary": True})
        schedule = RandomSchedule(3)
        for _ in range(25):
            so = schedule.next_step()
            a, b = plain.execute(so), watched.execute(so)
            assert a.token_ids.tolist() == b.token_ids.tolist()
            schedule.sampled(so, a.token_ids)
        for layer in watched.kv:
            for tensor in layer:
                assert torch.isfinite(tensor).all()

    def spoiled(self, make_runner, spoil, mode="padded_eager"):
        runner = make_runner(graphs=MODES[mode], engine={"padding_canary": True})
        attend = runner.backend.attend

        def leaking(layer, q, kv, out, plan):
            attend(layer, q, kv, out, plan)
            spoil(q, kv, out)

        runner.backend.attend = leaking
        so = step(
            [(r, 0, 3, True) for r in range(3)],
            new=[new_row(r, [3, 4, 5], block_ids=[2 + r]) for r in range(3)],
        )
        return runner.execute(so)

    def test_reports_padding_that_reaches_a_real_row(self, make_runner):
        def spoil(q, kv, out):
            out[0] += q[-1] * 0

        with pytest.raises(StepError, match=r"hidden states of segmented.*differ with padding"):
            self.spoiled(make_runner, spoil)

    @pytest.mark.parametrize("mode", ["padded_eager", "emulated"])
    @pytest.mark.parametrize("which", ["q", "k", "v"])
    def test_reports_it_inside_a_captured_graph(self, mode, which, make_runner, monkeypatch):
        """Attention and what leaks there are captured; the next to last request is padding."""
        attend, write = torch_paged.Backend.attend, forward.write_kv
        written = {}

        def noting(k, v, kv, slots):
            written.update(k=k, v=v)
            write(k, v, kv, slots)

        def leaking(backend, layer, q, kv, out, plan):
            attend(backend, layer, q, kv, out, plan)
            if len(q) == 4:
                out[0] += {"q": q, **written}[which][-1, :1] * 0
            written.clear()

        monkeypatch.setattr(forward, "write_kv", noting)
        monkeypatch.setattr(torch_paged.Backend, "attend", leaking)
        runner = make_runner(graphs=MODES[mode], engine={"padding_canary": True})
        rows = range(3)
        new = [new_row(r, [3, 4, 5], block_ids=[2 + r]) for r in rows]
        runner.execute(step([(r, 0, 3, True) for r in rows], new=new))
        with pytest.raises(StepError, match=r"hidden states of decode\(4 .*differ with padding"):
            runner.execute(step([(r, 3, 1, True) for r in rows]))

    @pytest.mark.parametrize("mode", ["padded_eager", "emulated"])
    def test_reports_a_read_of_the_trash_block(self, make_runner, mode):
        def spoil(q, kv, out):
            out[1] += kv.k[TRASH_BLOCK].sum() * 0

        with pytest.raises(StepError, match="hidden states"):
            self.spoiled(make_runner, spoil, mode)

    def test_reports_a_write_of_the_null_block(self, make_runner):
        def spoil(q, kv, out):
            kv.v[NULL_BLOCK, 0] = 1.0

        with pytest.raises(StepError, match="wrote the null block of layer 0"):
            self.spoiled(make_runner, spoil)


def test_freed_rows_of_a_step_without_requests_are_followed(make_runner):
    runner = make_runner()
    runner.execute(step([(0, 0, 3, True)], new=[new_row(0, [1, 2, 3], block_ids=[4])]))
    ro = runner.execute(step([], freed=[0]))
    assert len(ro.token_ids) == 0
    assert runner.states.num_blocks[0] == 0


def test_rows_whose_logits_are_not_finite_end_alone(make_runner, monkeypatch):
    runner = make_runner()
    compute = runner._model.compute_logits

    def broken(hidden):
        logits = compute(hidden)
        logits[1] = torch.nan
        return logits

    model = types.SimpleNamespace(forward=runner._model.forward, compute_logits=broken)
    monkeypatch.setattr(runner, "_model", model)
    new = [new_row(r, [3, 4, 5 + r], block_ids=[2 + r]) for r in range(3)]
    ro = runner.execute(step([(r, 0, 3, True) for r in range(3)], new=new))
    assert list(ro.errors) == [1]
    assert ro.token_ids[0] >= 0
    assert ro.token_ids[2] >= 0


def test_a_mode_that_cannot_serve_is_a_backend_error(make_runner):
    with pytest.raises(BackendError, match="full"):
        make_runner(graphs={"decode": "full", "mixed": "eager"})
    with pytest.raises(BackendError, match="no graph mode"):
        make_runner(graphs={"decode": "eagre", "mixed": "eager"})


def test_prompt_logprobs_get_the_logits_of_every_predecessor(make_runner, tiny):
    runner = make_runner()
    tokens = [5, 9, 3, 22, 41, 8, 17, 30, 2, 11, 6, 7, 33]
    calls = []

    def prompt_logprobs(logits, row, target_ids):
        calls.append((row, target_ids.tolist(), logits.clone()))
        return [[] for _ in target_ids]

    runner.sampler.prompt_logprobs = prompt_logprobs
    new = [new_row(0, tokens, block_ids=[2, 3, 4, 5], prompt_logprobs=0)]
    counts = []
    for start in range(0, 13, 4):
        count = min(4, 13 - start)
        ro = runner.execute(step([(0, start, count, start + count == 13)], new=new))
        counts.append({row: len(found) for row, found in ro.prompt_logprobs.items()})
        new = []
    assert counts == [{0: 4}, {0: 4}, {0: 4}, {}]
    assert [t for _, targets, _ in calls for t in targets] == tokens[1:]
    got = torch.cat([logits for _, _, logits in calls])
    torch.testing.assert_close(got, dense_logits(tiny, tokens)[:-1], atol=1e-5, rtol=1e-4)
