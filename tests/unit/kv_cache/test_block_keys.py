import hashlib
import itertools
import struct

import pytest
import xxhash

from runtime.data.request import ExtraKey
from runtime.errors import ConfigError
from runtime.kv_cache.block_keys import BlockHasher, encode_extra_keys, frame


def test_frame_is_injective_over_shifted_boundaries():
    parts = [b"", b"a", b"ab", b"\x00\x00\x00\x01"]
    seen = {}
    for n in range(4):
        for combo in itertools.product(parts, repeat=n):
            assert seen.setdefault(frame(*combo), combo) == combo


@pytest.mark.parametrize(
    ("name", "digest", "size"),
    [
        ("xxh3_128", lambda data: xxhash.xxh3_128(data).digest(), 16),
        ("sha256", lambda data: hashlib.sha256(data).digest(), 32),
    ],
)
def test_key_is_the_named_hash_over_framed_parts(name, digest, size):
    hasher = BlockHasher(2, name)
    tokens = hasher.pack([9, 7, 5, 3], 1)
    assert tokens == struct.pack("<2i", 5, 3)
    first = hasher.key(b"", tokens, b"x")
    assert first == digest(frame(b"", tokens, b"x"))
    assert len(first) == size
    assert hasher.key(first, tokens, b"") == digest(frame(first, tokens, b""))
    assert hasher.key(first, tokens, b"x") == digest(frame(first, tokens, b"x"))
    assert hasher.key(b"", tokens, b"") == digest(frame(b"", tokens, b""))


def test_every_part_changes_the_key():
    hasher = BlockHasher(2, "xxh3_128")
    tokens = hasher.pack([1, 2], 0)
    keys = {
        hasher.key(b"", tokens, b""),
        hasher.key(b"p" * 16, tokens, b""),
        hasher.key(b"", hasher.pack([2, 1], 0), b""),
        hasher.key(b"", tokens, encode_extra_keys([ExtraKey("cache_salt", "s1")], 2)[0]),
        hasher.key(b"", tokens, encode_extra_keys([ExtraKey("cache_salt", "")], 2)[0]),
        hasher.key(b"", tokens, encode_extra_keys([ExtraKey("image", "s1")], 2)[0]),
        hasher.key(b"", tokens, encode_extra_keys([ExtraKey("cache_salt", "s1", 1)], 2)[0]),
    }
    assert len(keys) == 7


def test_extra_keys_count_in_the_block_where_they_start():
    salt, image, late = ExtraKey("salt", "a"), ExtraKey("image", "b", 3), ExtraKey("image", "c", 9)
    encoded = encode_extra_keys([late, salt, image], 4)
    assert sorted(encoded) == [0, 2]
    assert encoded == encode_extra_keys([image, late, salt], 4), "the order that they come in"
    assert encode_extra_keys([salt], 4)[0] != encoded[0]
    assert encode_extra_keys([], 4) == {}


def test_unknown_hash_names_the_key_and_what_is_allowed():
    with pytest.raises(ConfigError, match=r"cache\.hash.*md5.*xxh3_128, sha256"):
        BlockHasher(4, "md5")
