"""Random numbers of the coordinator: named by seed, query and draw like those of shards, but independent of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from softindex.kernels import hash_bytes
from softindex.records import Doubles, Floats

__all__ = ["name_queries", "pick_key", "shard_seed", "uniforms"]

Words = NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def shard_seed(seed: int, shard: int) -> int:
    """The seed of a shard.  Slates keep draws of several shards, whose random numbers must not be the same.

    The first shard keeps the seed of the call, so that an index of one shard draws what the shard alone would draw.
    """
    return seed if shard == 0 else hash_bytes(np.array([seed, shard], np.uint64).tobytes())


def pick_key(seed: int) -> int:
    """The key of the numbers that choose shards: no shard draws with it."""
    return hash_bytes(b"shards" + np.array([seed], np.uint64).tobytes())


def name_queries(queries: Floats) -> Words:
    """(b,) what the streams of queries (b, d) are called: by content, and later copies in one call differently."""
    copies: Counter[int] = Counter()
    names = np.empty(len(queries), np.uint64)
    # -0 and 0 are the same number and name the same stream.
    for row, query in enumerate(queries + np.float32(0)):
        name = hash_bytes(query.tobytes())
        copy = copies[name]
        copies[name] += 1
        names[row] = hash_bytes(np.array([name, copy], np.uint64).tobytes())
    return names


def uniforms(key: int, names: Words, n: int) -> Doubles:
    """(b, n) numbers in [0, 1) with 53 bits; those of draw j depend on the key, the name and j only."""
    count = len(names)
    words = _philox(key, np.repeat(names, n), np.tile(np.arange(n, dtype=np.uint64), count))
    joined = (words[1] << _HALF) | words[0]
    result: Doubles = (joined >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result.reshape(count, n)


def _philox(key: int, low: Words, high: Words) -> tuple[Words, Words, Words, Words]:
    """Philox 4x32-10 (Salmon and others, 2011) of the counters (low, high); words as the kernels number them."""
    x = low & _LOW, low >> _HALF, high & _LOW, high >> _HALF
    keys = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        first, second = (np.uint64(part) for part in keys)
        even, odd = _MULTIPLIERS[0] * x[0], _MULTIPLIERS[1] * x[2]
        x = (odd >> _HALF) ^ x[1] ^ first, odd & _LOW, (even >> _HALF) ^ x[3] ^ second, even & _LOW
        keys = (keys[0] + _STEPS[0]) & 0xFFFFFFFF, (keys[1] + _STEPS[1]) & 0xFFFFFFFF
    return x
