"""Noise: the right law, no relation between keys, the same number everywhere."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.core import noise
from paceline.core.noise import Stream, gumbel, hash_bits, stream_key, uniform

INDEX = np.arange(50_000, dtype=np.int64)
WORD = 2**64


def splitmix64(key: int, index: int) -> int:
    """Output number `index` of the generator whose state is `key`, in unbounded integers."""
    z = (key + index * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


@pytest.mark.parametrize("key", [0, 1, 42, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15])
def test_hash_is_splitmix64(key):
    index = np.array([0, 1, 2, 7, 151_935, 2**31, 2**40 + 3, 2**62, -1, -(2**63)], np.int64)
    assert [int(b) % WORD for b in hash_bits(key, index)] == [splitmix64(key, int(i)) for i in index]


def test_first_outputs_of_seed_zero():
    """The published first outputs of SplitMix64 from state 0 (its first state is one increment on)."""
    bits = [int(b) % WORD for b in hash_bits(0, np.arange(1, 4, dtype=np.int64))]
    assert bits == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("key", [0, 5, 2**63, 2**64 - 1])
def test_torch_gives_the_same_bits(key):
    index = np.concatenate([INDEX[:1000], [2**62, -3, -(2**63)]])
    bits = hash_bits(key, torch.from_numpy(index))
    assert bits.dtype == torch.int64
    assert np.array_equal(bits.numpy(), hash_bits(key, index))
    assert hash_bits(key, torch.from_numpy(index.reshape(17, 59))).shape == (17, 59)


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        ((0, 0, Stream.TARGET, 0), 0x94926C2E801CB6F9),
        ((1, 2, Stream.DRAFT, 3), 0x4532E0676B25014C),
        ((2**64 - 1, 32_768, Stream.ACCEPT, 15), 0xEE0211828AA1D422),
    ],
)
def test_keys_never_change(key, golden):
    """A seed that a user noted must give the same text with every later version."""
    assert stream_key(*key) == golden


def test_numbers_never_change():
    key = stream_key(7, 11, Stream.TARGET)
    assert uniform(key, INDEX[:3]).tolist() == [0.8991294668487685, 0.5651602585003189, 0.7175336599740895]
    assert gumbel(key, INDEX[:3]) == pytest.approx(
        [2.241224339255907, 0.5609863234802693, 1.1028148482855935], abs=1e-14
    )


def test_salt_defaults_to_zero():
    assert stream_key(3, 4, Stream.DRAFT) == stream_key(3, 4, Stream.DRAFT, 0)


@pytest.mark.parametrize("seed", [0, 1, -1, -(2**70), 2**63, 2**64 + 1, 10**40])
def test_any_seed_is_folded_into_64_bits(seed):
    key = stream_key(seed, 0, Stream.TARGET)
    assert 0 <= key < WORD
    assert key == stream_key(seed % WORD, 0, Stream.TARGET)
    assert np.isfinite(gumbel(key, INDEX[:100])).all()


@pytest.mark.parametrize("bits", [0, -1, 2**63 - 1, -(2**63), 4095, -4096])
def test_the_ends_of_the_interval_are_never_reached(bits, monkeypatch):
    """Whatever the hash says: log(0) and log(1) = 0 would give infinite noise."""
    monkeypatch.setattr(noise, "hash_bits", lambda key, index: np.full(index.shape, bits, np.int64))
    drawn = uniform(0, INDEX[:2])
    assert (drawn > 0).all() and (drawn < 1).all()
    assert np.isfinite(gumbel(0, INDEX[:2])).all()


def test_the_grid_is_symmetric(monkeypatch):
    ends = []
    for bits in (0, -1):
        monkeypatch.setattr(noise, "hash_bits", lambda key, index, bits=bits: np.full(index.shape, bits, np.int64))
        ends.append(float(uniform(0, INDEX[:1])[0]))
    assert ends == [2.0**-53, 1 - 2.0**-53]


KEYS = {
    "base": stream_key(1234, 100, Stream.TARGET, 0),
    "next seed": stream_key(1235, 100, Stream.TARGET, 0),
    "seed + 2^32": stream_key(1234 + 2**32, 100, Stream.TARGET, 0),
    "next position": stream_key(1234, 101, Stream.TARGET, 0),
    "draft": stream_key(1234, 100, Stream.DRAFT, 0),
    "accept": stream_key(1234, 100, Stream.ACCEPT, 0),
    "next salt": stream_key(1234, 100, Stream.TARGET, 1),
    "seed and position swapped": stream_key(100, 1234, Stream.TARGET, 0),
}


def test_every_part_of_a_key_counts():
    assert len(set(KEYS.values())) == len(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_uniform_and_gumbel_laws(name):
    assert stats.kstest(uniform(KEYS[name], INDEX), "uniform").pvalue > 1e-3
    assert stats.kstest(gumbel(KEYS[name], INDEX), "gumbel_r").pvalue > 1e-3


@pytest.mark.parametrize("name", [name for name in KEYS if name != "base"])
def test_keys_are_unrelated(name):
    """No correlation of the numbers nor of their squares, at the same or the next index (4.5 standard errors)."""
    one, other = uniform(KEYS["base"], INDEX) - 0.5, uniform(KEYS[name], INDEX) - 0.5
    for a, b in [(one, other), (one[1:], other[:-1]), (one[:-1], other[1:]), (one**2, other**2)]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / math.sqrt(len(a))


@pytest.mark.parametrize(
    "keys",
    [
        [stream_key(seed, 5, Stream.TARGET) for seed in range(20_000)],
        [stream_key(9, position, Stream.TARGET) for position in range(20_000)],
        [stream_key(9, 5, Stream.DRAFT, salt) for salt in range(20_000)],
        [stream_key(9, 5 + n // 3, Stream(n % 3 + 1)) for n in range(20_000)],
    ],
    ids=["seeds", "positions", "salts", "streams"],
)
def test_one_token_across_keys(keys):
    """What a single token sees as keys count up: uniform, in single numbers and in pairs of neighbours."""
    token = np.array([17], np.int64)
    seen = np.array([uniform(key, token)[0] for key in keys])
    assert stats.kstest(seen, "uniform").pvalue > 1e-3
    cells = np.histogram2d(seen[:-1:2], seen[1::2], bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3


def test_each_bit_of_an_index_moves_half_the_hash():
    key = KEYS["base"]
    index = INDEX[:500]
    for bit in range(48):
        changed = hash_bits(key, index) ^ hash_bits(key, index ^ (1 << bit))
        moved = np.mean([int(c).bit_count() if c >= 0 else 64 - (~int(c)).bit_count() for c in changed])
        assert 30.5 < moved < 33.5


def test_gumbel_max_draws_from_the_law():
    p = np.array([0.5, 0.25, 0.15, 0.1])
    ids = np.arange(4, dtype=np.int64)
    drawn = [int(np.argmax(np.log(p) + gumbel(stream_key(3, n, Stream.TARGET), ids))) for n in range(10_000)]
    assert stats.chisquare(np.bincount(drawn, minlength=4), p * len(drawn)).pvalue > 1e-3


def test_order_and_company_do_not_matter():
    key = KEYS["base"]
    shuffled = np.random.default_rng(0).permutation(INDEX)
    assert np.array_equal(gumbel(key, shuffled), gumbel(key, INDEX)[shuffled])
    assert all(float(gumbel(key, INDEX[n : n + 1])[0]) == gumbel(key, INDEX)[n] for n in (0, 1, 999))
    assert all(a != b for a, b in pairwise(gumbel(key, INDEX)))


def test_small_seeds_and_positions_share_no_key():
    keys = {stream_key(seed, position, Stream.TARGET) for seed in range(256) for position in range(64)}
    assert len(keys) == 256 * 64
