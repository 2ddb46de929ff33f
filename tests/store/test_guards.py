"""Large mapped arrays are compared with the checksums of their blocks before they are first read."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from samples import flip

import softindex
from softindex import mol
from softindex.errors import CorruptIndexError
from softindex.kernels import Guard, block_sums
from softindex.records import Stored
from softindex.store import format as form
from softindex.store import load, read_manifest, save, verify
from softindex.store.guards import BlockSums

BLOCK = form.BLOCK_BYTES


@pytest.fixture
def all_large(monkeypatch):
    """As if every blob were too large to be checked at load."""
    for module in (form, softindex.store.files):
        monkeypatch.setattr(module, "EAGER_BYTES", 0)
    monkeypatch.setattr("softindex.fields.SMALL_BYTES", 0)


def sums_of(data, block):
    sums = np.empty(-(-len(data) // block), np.uint64)
    block_sums(data, block, sums)
    return sums


def test_every_flipped_bit_and_exchanged_word_changes_the_checksum():
    data = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    seen = {int(sums_of(data, 4096)[0])}
    for place in range(4096):
        for bit in range(8):
            data[place] ^= np.uint8(1 << bit)
            seen.add(int(sums_of(data, 4096)[0]))
            data[place] ^= np.uint8(1 << bit)
    words = data.view(np.uint64)
    for first, second in np.random.default_rng(1).integers(0, 512, (2000, 2)):
        if words[first] != words[second]:
            words[[first, second]] = words[[second, first]]
            seen.add(int(sums_of(data, 4096)[0]))
            words[[first, second]] = words[[second, first]]
    # Two flips of the highest bits cancel each other in sums that do not rotate.
    for first, second in ((0, 8), (1, 9), (0, 1)):
        words[[first, second]] ^= np.uint64(1 << 63)
        seen.add(int(sums_of(data, 4096)[0]))
        words[[first, second]] ^= np.uint64(1 << 63)
    assert len(seen) > 1 + 4096 * 8 + 900


def test_sums_do_not_depend_on_the_chunks_that_pass():
    data = np.random.default_rng(0).integers(0, 256, 5 * BLOCK + 640, np.uint8)
    for cuts in (
        [],
        [64],
        [BLOCK, 3 * BLOCK],
        [BLOCK + 64, 2 * BLOCK - 64, 5 * BLOCK],
        list(range(64, 3 * BLOCK, 9984)),
    ):
        made = BlockSums(len(data))
        for part in made.add_all(memoryview(piece) for piece in np.split(data, cuts)):
            assert len(part)
        np.testing.assert_array_equal(made.sums, sums_of(data, BLOCK))


def test_a_guard_finds_damage_where_it_is_and_nowhere_else():
    data = np.random.default_rng(0).integers(0, 256, 64 * 10, np.uint8)
    sums = sums_of(data, 128)
    Guard(data, sums, 128, "vectors").check_all()
    data[300] ^= 1
    with pytest.raises(RuntimeError, match="vectors differs from what was saved, in the 128 bytes from byte 256 on"):
        Guard(data, sums, 128, "vectors").check_all()
    for wrong in ((data, sums[:-1], 128), (data, sums, 100), (data[:-1], sums, 128)):
        with pytest.raises(ValueError, match=r"64 bytes|per block"):
            Guard(*wrong, "vectors")


def test_a_large_blob_has_checksums_and_a_small_one_has_not(tmp_path):
    large = np.zeros(form.EAGER_BYTES // 4 + 1000, np.float32)
    save(tmp_path / "index", Stored("index", {}, {"small": np.zeros(5), "large": large}))
    manifest, found = read_manifest(tmp_path / "index"), load(tmp_path / "index")
    assert manifest.sums == {"large.sums": "large"}
    assert set(found.arrays) == {"small", "large"}
    assert set(found.guards) == {"large"}
    assert not load(tmp_path / "index", verify=True).guards
    assert not load(tmp_path / "index", mmap=False).guards
    found.guards["large"].check_all()
    verify(tmp_path / "index")
    flip(tmp_path / "index" / "large.sums.bin", 3)
    with pytest.raises(CorruptIndexError, match=r"large\.sums\.bin .*checksum"):
        load(tmp_path / "index")


def vectors_of(n=3000, d=64):
    return np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)


def test_an_index_reads_and_checks_only_what_a_call_needs(tmp_path, all_large):
    softindex.build(vectors_of(), clusters=30, codes=True).save(tmp_path / "index")
    query = vectors_of()[0]
    expected = softindex.load(tmp_path / "index", verify=True).top_k(query, 3, probes=1)
    clean = softindex.load(tmp_path / "index")
    best = clean.top_k(query, 3, probes=1)
    np.testing.assert_array_equal(best.ids, expected.ids)
    # The damage is in the last block: a search that stays in another one works, and a full scan is refused.
    offsets = clean.items.offsets
    inside = np.searchsorted(offsets, int(np.flatnonzero(clean.ids == best.ids[0])[0]), side="right") - 1
    end = offsets[inside + 1] * 64 * 4
    size = (tmp_path / "index" / "vectors.bin").stat().st_size
    place = size - 100 if end // BLOCK < size // BLOCK else 0
    flip(tmp_path / "index" / "vectors.bin", place)
    damaged = softindex.load(tmp_path / "index")
    np.testing.assert_array_equal(damaged.top_k(query, 3, probes=1).ids, expected.ids)
    for _ in range(2):
        with pytest.raises(CorruptIndexError, match="vectors differs from what was saved"):
            damaged.sample(query, temperature=1.0, method="exact")
    with pytest.raises(CorruptIndexError, match="vectors differs"):
        damaged.items  # noqa: B018
    with pytest.raises(CorruptIndexError, match="vectors differs"):
        damaged.save(tmp_path / "again")
    assert not os.path.exists(tmp_path / "again")


def test_items_in_fewer_bits_are_checked_before_they_are_read(tmp_path, all_large):
    softindex.build(vectors_of(), clusters=30, storage="int8").save(tmp_path / "index")
    query, expected = vectors_of()[0], softindex.load(tmp_path / "index", verify=True)
    clean = softindex.load(tmp_path / "index")
    np.testing.assert_array_equal(clean.top_k(query, 3).ids, expected.top_k(query, 3).ids)
    flip(tmp_path / "index" / "residual_values.bin", 70_000)
    damaged = softindex.load(tmp_path / "index")
    for call in every_call(damaged):
        with pytest.raises(CorruptIndexError, match="residual_values differs from what was saved"):
            call()
    with pytest.raises(CorruptIndexError, match="residual_values"):
        damaged.vectors([3])
    with pytest.raises(CorruptIndexError, match="checksum"):
        softindex.load(tmp_path / "index", verify=True)


def every_call(product):
    queries = np.random.default_rng(1).standard_normal((2, getattr(product, "dim", 6))).astype(np.float32)
    if isinstance(product, softindex.Index):
        for method in ("exact", "certified"):
            yield lambda m=method: product.sample(queries, 2, temperature=1.0, method=m, seed=1)
        yield lambda: product.top_k(queries, len(product))
        yield lambda: product.top_k(queries, 5)
        yield lambda: product.log_partition(queries, temperature=1.0, method="exact")
    elif isinstance(product, softindex.AdaptiveSoftmax):
        for guarantee in ("exact", "deterministic"):
            yield lambda g=guarantee: product.top_k(queries, 3, temperature=1.0, guarantee=g)
        yield lambda: product.sample(queries, 2, temperature=1.0, seed=1)
        yield lambda: product.log_prob(queries, [1, 2], temperature=1.0)
        yield lambda: product.log_partition(queries, temperature=1.0)
    else:
        yield lambda: product.top_k(queries, 3)
        yield lambda: product.sample(queries, 2, temperature=1.0, seed=1)
        yield lambda: product.averages
        yield lambda: product.rank(queries, [1, 2, 3], 2)
        yield lambda: product.remove([1])


def make_product(kind):
    if kind == "index":
        return softindex.build(vectors_of(1500), clusters=9, codes=True, log_bias=np.zeros(1500), tree=True)
    if kind == "layer":
        return softindex.AdaptiveSoftmax(vectors_of(400, 300))
    from made_similarities import similarity

    return mol.build(similarity("mixture", 500), np.arange(500))


@pytest.mark.parametrize("kind", ["index", "layer", "mixture"])
def test_a_flipped_bit_of_a_mapped_array_is_never_a_silent_wrong_answer(kind, tmp_path, all_large, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(__file__), "..", "mol"))
    make_product(kind).save(tmp_path / "saved")
    intact, refused = answers(tmp_path / "saved"), {}
    assert "refused" not in intact
    rng = np.random.default_rng(3)
    for path in sorted((tmp_path / "saved").glob("*.bin")):
        place, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        flip(path, place, bit)
        found = answers(tmp_path / "saved")
        flip(path, place, bit)
        # A call that does not read the damaged block may answer.
        assert all(answer in ("refused", right) for answer, right in zip(found, intact, strict=True)), path.name
        refused[path.name] = found.count("refused")
    # Codes and sketches serve some methods only; the other arrays are read by every one of these calls.
    assert all(count >= 3 or name in ("code_values.bin", "sketch_values.bin") for name, count in refused.items())
    assert answers(tmp_path / "saved") == intact


def answers(path):
    """What every call returns, as text, or "refused"."""
    found = []
    try:
        product = softindex.load(path)
    except CorruptIndexError:
        return ["refused"] * 5
    for call in every_call(product):
        try:
            result = call()
            numbers = getattr(result, "ids", getattr(result, "value", result))
            found.append(str(None if numbers is None else np.asarray(numbers).tolist()))
        except CorruptIndexError:
            found.append("refused")
    return found


def test_threads_may_find_the_same_damage(tmp_path, all_large):
    softindex.build(vectors_of(), clusters=30).save(tmp_path / "index")
    query = vectors_of()[:8]
    intact = softindex.load(tmp_path / "index").sample(query, 50, temperature=1.0, method="exact", seed=0).ids
    index = softindex.load(tmp_path / "index")
    with ThreadPoolExecutor(8) as pool:
        draws = [pool.submit(index.sample, query, 50, temperature=1.0, method="exact", seed=0) for _ in range(8)]
        assert all(np.array_equal(draw.result().ids, intact) for draw in draws)


def test_saves_without_checksums_of_blocks_load_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(form, "_is_large", lambda blob: False)
    large = np.zeros(form.EAGER_BYTES // 4 + 1000, np.float32)
    save(tmp_path / "old", Stored("index", {}, {"large": large}))
    monkeypatch.undo()
    assert read_manifest(tmp_path / "old").block_bytes is None
    assert not load(tmp_path / "old").guards
