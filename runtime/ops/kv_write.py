"""Writing a step's keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor

from attention_backends import LayerKV


def write_kv(k: Tensor, v: Tensor, kv: LayerKV, slot_mapping: Tensor) -> None:
    """Write each token's K and V into its slot, in place.

    Args:
        k: [T, Hkv, D]; any strides.
        v: [T, Hkv, D]; any strides.
        kv: the layer's cache, [N, P, Hkv, D] each; any strides.
        slot_mapping: [T] int64, block id * P + offset. Real tokens have distinct slots; of several
            padding tokens in one slot of the trash block, any one may win.
    """
    _scatter(kv.k, k, slot_mapping)
    _scatter(kv.v, v, slot_mapping)


def _scatter(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    block_size = cache.shape[1]
    if cache.stride(0) == block_size * cache.stride(1):
        cache.flatten(0, 1).index_copy_(0, slots, rows)
    else:
        cache[slots // block_size, slots % block_size] = rows
