"""The steps that attention is tried with, and the buckets that it is captured in."""

from __future__ import annotations

from collections.abc import Iterator

from attention_backends import Bucket, GraphSupport, Support
from graphs._dispatch.buckets import kv_class_sizes
from tools._gpu_check.scale import Scale

MIXES = {
    "decode": ([1, 1, 1, 1], [1, 65, 512, 4000]),
    "prefill": ([300, 41], [300, 41]),
    "chunks": ([128, 7], [1500, 2049]),
    "mixed": ([1, 200, 1, 5], [777, 1200, 16, 5]),
}
"""Query and key tokens of each request."""
RAGGED_REQS = 6

Lens = tuple[list[int], list[int]]


def is_short(scale: Scale) -> bool:
    return scale.attention_tokens < max(max(queries) for queries, _ in MIXES.values())


def mixes_of(scale: Scale) -> dict[str, Lens]:
    if not is_short(scale):
        return MIXES
    short = {}
    for mix, (queries, keys) in MIXES.items():
        queries = [1] * 4 if mix == "decode" else [q % 7 + 1 for q in queries]
        short[mix] = queries, [9, 33, 16, 20][: len(keys)]
    return short


def buckets_of(support: Support, scale: Scale, *, is_first: bool) -> dict[str, list[Bucket]]:
    """What the backend may be captured in; other shapes than the first take fewer rows, since each
    number of splits is a kernel to compile."""
    found = {}
    if support.graph >= GraphSupport.ONE_TOKEN:
        rows = (
            scale.attention_rows
            if is_first
            else scale.attention_rows[:: len(scale.attention_rows) - 1]
        )
        classes = kv_class_sizes(scale.attention_keys) if support.bucketed_kv else [0]
        found["decode"] = [Bucket("decode", n, n, keys) for n in rows for keys in classes]
    if support.graph >= GraphSupport.RAGGED:
        found["ragged"] = [Bucket("ragged", scale.attention_tokens, RAGGED_REQS)]
    return found


def steps_of(bucket: Bucket, scale: Scale) -> Iterator[Lens]:
    """The bucket full, with the most keys that it may have, then with padding and fewer."""
    if bucket.kind == "ragged":
        tokens = bucket.num_tokens
        yield [tokens], [tokens + 188 if not is_short(scale) else tokens + 9]
        yield from (lens for mix, lens in mixes_of(scale).items() if mix != "decode")
        return
    bound, rows = bucket.kv_class or scale.attention_keys, bucket.num_reqs
    first = [bound, bound - 1, 65, 1, 300, 17, 1025, 128]
    lens = [min(n, bound) for n in first] + [(i * 37) % min(bound, 700) + 1 for i in range(8, rows)]
    yield [1] * rows, lens[:rows]
    fewer = rows // 2 + 1
    yield [1] * fewer, lens[2 : 2 + fewer] if rows > 1 else [65]
