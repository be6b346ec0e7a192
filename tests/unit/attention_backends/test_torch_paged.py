import numpy as np
import pytest
import torch

from attention_backends import Bucket, GraphSupport, LayerKV
from attention_backends._torch_plan import MAX_GROUP_KEYS, SIMILAR, TILE_ROWS, group_by_length
from attention_backends.torch_paged import Backend
from tests.unit.attention_backends.reference import CPU, Case, dense_attention, make_shape

MIXES = {
    "decodes": [(1, 1), (5, 1), (16, 1), (17, 1), (40, 1)],
    "prefills": [(1, 1), (7, 7), (16, 16), (33, 33)],
    "chunks": [(10, 4), (33, 5), (20, 19)],
    "mixed": [(38, 1), (30, 9), (3, 3), (1, 1), (17, 2)],
}


def make_backend(shape, block_size=4):
    return Backend([shape], block_size, CPU)


def check(case, *, atol=2e-5):
    out = case.run(make_backend(case.shape, case.block_size))
    torch.testing.assert_close(
        out[: case.num_tokens].double(), case.expected(), atol=atol, rtol=atol
    )
    assert torch.isfinite(out).all()
    return out


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(
    "heads", [(2, 2, 32), (4, 2, 48), (3, 1, 64), (9, 3, 64), (8, 2, 80), (8, 1, 128)]
)
def test_equals_dense_attention(mix, block_size, heads):
    check(Case(make_shape(*heads), MIXES[mix], block_size=block_size))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "changes", [{"window": w} for w in (1, 3, 8, 16, 1000)] + [{"softcap": 3.0}]
)
def test_window_and_softcap(mix, changes):
    check(Case(make_shape(**changes), MIXES[mix]))
    check(Case(make_shape(**changes, scale=0.7), MIXES[mix], block_size=16))


def test_window_and_softcap_together():
    check(Case(make_shape(window=6, softcap=2.0), MIXES["mixed"]))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 3e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_half_precision_sums_in_float32(dtype, atol, softcap):
    for mix in MIXES.values():
        check(Case(make_shape(dtype=dtype, softcap=softcap), mix), atol=atol)


@pytest.mark.parametrize("window", [None, 100, TILE_ROWS + 30])
def test_chunks_longer_than_a_tile(window):
    n = TILE_ROWS
    requests = [(2 * n + 20, 2 * n + 20), (n + 50, n + 1), (n + 9, n)]
    check(Case(make_shape(2, 1, 16, window=window), requests, block_size=16))


@pytest.mark.parametrize("padding", [{"tail": 11}, {"tail": 5, "empty": 3}, {"decode_rows": 3}])
@pytest.mark.parametrize("mix", MIXES)
def test_padding_changes_no_real_row_and_is_finite(mix, padding):
    shape = make_shape()
    exact, padded = Case(shape, MIXES[mix]), Case(shape, MIXES[mix], **padding)
    padded.q[: exact.num_tokens] = exact.q
    padded.q[exact.num_tokens :] = torch.nan
    out = padded.run(make_backend(shape))
    assert torch.equal(out[: exact.num_tokens], exact.run(make_backend(shape)))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("window", [None, 5])
def test_chunked_equals_whole(window):
    shape, length = make_shape(window=window), 23
    whole = Case(shape, [(length, length)])
    expected = whole.run(make_backend(shape))
    for size in (1, 3, 4, 7, 16):
        parts = []
        for start in range(0, length, size):
            end = min(start + size, length)
            part = Case(shape, [(end, end - start)])
            table = whole.batch.block_table.clone()
            part.kv, part.q = whole.kv, whole.q[start:end]
            part.batch.block_table, part.batch.block_table_cpu = table, table.numpy()
            parts.append(part.run(make_backend(shape)))
        torch.testing.assert_close(torch.cat(parts), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_batched_decodes_equal_lone_ones(window):
    shape = make_shape(window=window)
    lens = np.random.default_rng(3).integers(1, 90, 40)
    batch = Case(shape, [(int(n), 1) for n in lens])
    out = batch.run(make_backend(shape))
    for r, n in enumerate(lens):
        expected = dense_attention(shape, batch.q[r : r + 1], batch.keys[r], batch.values[r])
        torch.testing.assert_close(
            out[r : r + 1].double(), expected, atol=1e-5, rtol=1e-5, msg=f"{n} keys"
        )


@pytest.mark.case("AT01")
def test_chunks_read_no_slot_that_is_not_written_yet():
    for seq_len, query_len in ((4, 4), (8, 4), (10, 2)):
        check(Case(make_shape(), [(seq_len, query_len)], poison=float("nan")))


@pytest.mark.case("AT03")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 100])
def test_every_length_of_the_last_block(length):
    check(Case(make_shape(), [(length, 1)], block_size=16))


@pytest.mark.case("AT05")
def test_equal_one_token_requests_get_equal_rows():
    case = Case(make_shape(), [(1, 1), (1, 1)], block_size=16)
    case.q[1] = case.q[0]
    for tensor in (case.kv.k, case.kv.v):
        tensor[case.batch.block_table[1, 0], 0] = tensor[case.batch.block_table[0, 0], 0]
    out = case.run(make_backend(case.shape, 16))
    assert torch.equal(out[0], out[1])
    assert out.abs().min() > 0


@pytest.mark.case("AT07")
@pytest.mark.parametrize("query_len", [1, 2, 5])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_nan_in_unfilled_slots_reaches_nothing(query_len, softcap):
    case = Case(make_shape(softcap=softcap), [(5, query_len), (9, 1)], poison=float("nan"))
    case.kv.k[0] = case.kv.v[0] = float("nan")  # not even the null block is needed for real rows
    check(case)


@pytest.mark.case("AT07")
def test_huge_finite_leftovers_reach_nothing():
    check(Case(make_shape(), MIXES["mixed"], poison=3e38))


@pytest.mark.case("GP11")
def test_stale_ids_past_the_blocks_in_use_are_not_read():
    case = Case(make_shape(), MIXES["mixed"])
    for r, (seq_len, _) in enumerate(case.requests):
        case.batch.block_table_cpu[r, -(-seq_len // 4) :] = 2**31 - 1
    case.batch.block_table = torch.from_numpy(case.batch.block_table_cpu)
    check(case)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("kv_class", [0, 48])
def test_a_decode_bucket_keeps_its_addresses_and_gives_the_same(window, kv_class):
    shape = make_shape(window=window)
    backend = make_backend(shape)
    bucket = Bucket("decode", 6, 6, kv_class)
    assert backend.reserve([bucket], max_model_len=64) > 0
    dummy = Case(shape, [], decode_rows=6)
    plan = backend.open_bucket(bucket, widened(dummy).batch)
    addresses = [
        (r.slots.data_ptr(), r.mask.data_ptr()) for rows in plan.rows.values() for r in rows
    ]
    for seed, lens in enumerate([(1, 5, 16, 40), (48,), (3, 3, 3, 3, 3, 3)]):
        case = widened(Case(shape, [(n, 1) for n in lens], seed=seed, decode_rows=6 - len(lens)))
        backend.refresh(plan, case.batch)
        out = case.run(backend, plan)
        expected = case.expected()
        torch.testing.assert_close(out[: len(lens)].double(), expected, atol=1e-5, rtol=1e-5)
        assert torch.isfinite(out).all()
    after = [(r.slots.data_ptr(), r.mask.data_ptr()) for rows in plan.rows.values() for r in rows]
    assert after == addresses
    if not window:
        too_long = widened(Case(shape, [(plan_keys(plan) + 1, 1)], decode_rows=5))
        with pytest.raises(ValueError, match="captured for"):
            backend.refresh(plan, too_long.batch)


def plan_keys(plan):
    return next(iter(plan.rows.values()))[0].mask.shape[-1]


def widened(case):
    table = np.zeros((len(case.batch.seq_lens_cpu), 20), np.int32)
    table[:, : case.batch.block_table_cpu.shape[1]] = case.batch.block_table_cpu
    case.batch.block_table_cpu, case.batch.block_table = table, torch.from_numpy(table)
    return case


def test_only_decode_buckets_are_opened():
    with pytest.raises(ValueError, match="only decode"):
        make_backend(make_shape()).open_bucket(Bucket("ragged", 8, 8), Case(make_shape(), []).batch)


def test_layers_of_different_windows_share_a_step():
    shapes = [make_shape(window=4), make_shape()]
    backend = Backend(shapes, 4, CPU)
    for layer, shape in enumerate(shapes):
        case = Case(shape, MIXES["mixed"])
        out = torch.full_like(case.q, torch.nan)
        backend.attend(layer, case.q, case.kv, out, backend.plan(case.batch))
        torch.testing.assert_close(out.double(), case.expected(), atol=1e-5, rtol=1e-5)


def test_kv_is_zero_aligned_and_of_the_right_shape():
    shapes = [make_shape(), make_shape(num_kv_heads=4, dtype=torch.bfloat16)]
    layers = Backend(shapes, 4, CPU).allocate_kv(7)
    assert [layer.k.shape for layer in layers] == [(7, 4, 2, 32), (7, 4, 4, 32)]
    assert [layer.v.dtype for layer in layers] == [torch.float32, torch.bfloat16]
    for layer in layers:
        assert isinstance(layer, LayerKV)
        assert layer.k.data_ptr() % 64 == 0
        assert not layer.k.any()
        assert not layer.v.any()
        assert layer.k.stride() == layer.v.stride()


def test_groups_hold_similar_lengths_and_every_request_once():
    rng = np.random.default_rng(0)
    for window in (None, 50):
        lens = rng.integers(1, 3000, 200).astype(np.int32)
        requests = np.flatnonzero(rng.random(200) < 0.7)
        groups = group_by_length(lens, requests, window)
        assert sorted(np.concatenate(groups).tolist()) == requests.tolist()
        for group in groups:
            visible = np.minimum(lens[group], window or 10**9)
            assert visible.min() >= SIMILAR * visible.max()
            assert len(group) == 1 or len(group) * visible.max() <= MAX_GROUP_KEYS
    assert group_by_length(lens, np.array([], np.int64), None) == []


def test_examine_states_support_and_reasons():
    support = Backend.examine(make_shape(), 4, CPU)
    assert support.ok
    assert support.graph is GraphSupport.ONE_TOKEN
    assert "cannot share" in Backend.examine(make_shape(5, 2), 4, CPU).reason
    assert "float64" in Backend.examine(make_shape(dtype=torch.float64), 4, CPU).reason
