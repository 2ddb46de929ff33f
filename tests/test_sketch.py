"""The sketch loses no item that could be among the best, on every target, whatever the items and queries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
import softindex.sketch as module
from made_indexes import made
from softindex.contents import make_engine
from softindex.kernels import _native, reference
from softindex.laws import LAWS
from softindex.sketch import draw_sketch
from softindex.store import load as load_stored
from softindex.store import save as save_stored
from softindex.testing import catalogues, queries
from test_codes import CASES, changed

TARGETS = _native.targets()


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(1, 9), groups=st.integers(1, 20), b=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_masks_are_those_of_the_reference(target, blocks, groups, b, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (blocks, groups, 64), dtype=np.uint8)
    scales = rng.uniform(0, 1, (blocks, 16)).astype(np.float32)
    scales[rng.random((blocks, 16)) < 0.05] = np.nan
    extreme = rng.random() < 0.2
    rounded = rng.choice([-127, 127], (b, 8 * groups)) if extreme else rng.integers(-127, 128, (b, 8 * groups))
    rounded = rounded.astype(np.int8)
    limits = (rng.standard_normal((b, 2)) * 500 * groups**0.5).astype(np.float32)
    masks = np.zeros((b, blocks), np.uint16)
    _native.sketch_masks(values, scales, rounded, limits, masks, target)
    found = (masks[:, :, None] >> np.arange(16) & 1).astype(bool).reshape(b, -1)
    for q in range(b):
        expected = reference.sketch_masks(values, scales, rounded[q : q + 1], *limits[q])[0]
        np.testing.assert_array_equal(found[q], expected)


def check_statements(vectors, offsets, means, sketch):
    """What is stored about the items of every cluster, in extended precision."""
    codes = reference.sketch_codes(sketch.values, vectors.shape[1])[: len(vectors)].astype(np.longdouble) - 7.5
    scales = sketch.scales.reshape(-1)[: len(vectors)].astype(np.longdouble)
    for cluster in range(len(means)):
        rows = slice(offsets[cluster], offsets[cluster + 1])
        residuals = vectors[rows].astype(np.longdouble) - means[cluster]
        away = np.sqrt(((residuals - scales[rows, None] * codes[rows]) ** 2).sum(axis=1))
        assert (away <= scales[rows] * sketch.errors[cluster]).all()
        assert (np.sqrt((codes[rows] ** 2).sum(axis=1)) <= sketch.lengths[cluster]).all()
        peaks = np.abs(residuals).max(axis=1, initial=0)
        assert (scales[rows] <= peaks / 7.5 * (1 + 1e-6) + 2.0**-100).all()
        # Useful as well as true: half a step a coordinate.
        assert sketch.errors[cluster] <= 0.5001 * vectors.shape[1] ** 0.5


def check_best(index, query, k, temperature=1.0):
    """The k best are those of a scan by the kernels, item by item, on every target."""
    dots = np.empty(len(index), np.float32)
    _native.scan(index._contents.arrays["vectors"], query, dots)
    bias = index.items.log_bias
    scores = dots.astype(np.float64) + (0.0 if bias is None else temperature * bias.astype(np.float64))
    expected = reference.top_k(scores, k)
    for target in TARGETS:
        engine = _native.Engine(dict(index._contents.arrays), target)
        positions, found = np.empty((1, k), np.int64), np.empty((1, k), np.float32)
        proven, statistics = np.empty((1, k), np.bool_), np.empty((2, 1))
        request = _native.Request(query[None], LAWS["exact"], temperature, -1)
        results = _native.BestResults(positions, found, proven, statistics, np.empty(1, np.int64))
        engine.top_k(request, results)
        np.testing.assert_array_equal(positions[0], expected)
        assert proven.all()
        assert statistics.tolist() == [[0.0], [0.0]]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), catalogue=catalogues(), temperature=st.sampled_from([1e-4, 1.0, 7.5]))
def test_the_best_are_those_of_a_scan_for_any_catalogue(data, catalogue, temperature):
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias)
    arrays = index._contents.arrays
    sketch = draw_sketch(arrays["vectors"], arrays["offsets"], arrays["means"], threads=1)
    check_statements(arrays["vectors"], arrays["offsets"], arrays["means"], sketch)
    np.testing.assert_array_equal(sketch.values, arrays["sketch_values"])
    for query in data.draw(queries(index.dim)):
        check_best(index, query, data.draw(st.integers(1, min(12, len(index)))), temperature)


@pytest.mark.parametrize("name", CASES)
def test_the_best_are_those_of_a_scan_for_hostile_items_and_queries(name):
    vectors = CASES[name]
    d = vectors.shape[1]
    index = softindex.build(vectors, clusters=5)
    arrays = index._contents.arrays
    sketch = draw_sketch(arrays["vectors"], arrays["offsets"], arrays["means"], threads=1)
    check_statements(arrays["vectors"], arrays["offsets"], arrays["means"], sketch)
    lone = np.zeros(d, np.float32)
    lone[0], lone[-1] = 1e6, 1.0
    for query in (*normal(4, d, seed=1), lone, vectors[0], np.zeros(d, np.float32), np.ones(d, np.float32)):
        with np.errstate(under="ignore"):
            for scale in (1.0, 1e-25, 1e-38, 1e12 / max(1.0, np.abs(query).max())):
                check_best(index, np.float32(scale) * query, 4)


@pytest.mark.parametrize("d", [2, 16, 100, 1000])
def test_no_item_is_lost_where_all_errors_add_up(d):
    # A pair x, -x, whose mean is zero: every coordinate of x is at the end of its step, on the side that the query
    # prefers.  Another cluster looks more promising and has an item that scores just less than x.
    rng = np.random.default_rng(d)
    for trial in range(40):
        signs = rng.choice([-1.0, 1.0], d)
        item = rng.integers(-7, 7, d) + 0.5 + signs * 0.4999
        item[0] = 7.5 * signs[0]
        query = signs * (1 + rng.integers(0, 3, d) * (trial % 2))
        across = rng.standard_normal(d)
        across -= across @ query / (query @ query) * query
        near = (1 - 1e-5) * (item @ query) / (query @ query) * query
        items = np.stack([near, 0.9 * near + 1e4 * across, item, -item]).astype(np.float32)
        if item @ query > 0:
            index = made(items, [2, 2], sketch=True)
            check_best(index, query.astype(np.float32), 1)
            assert index.top_k(query.astype(np.float32), 1).ids.tolist() == [2]


def test_no_item_is_lost_where_all_that_is_lost_is_the_querys():
    # Items that four bits hold exactly, with the signs of what rounding takes from each coordinate of the query.
    d = 1000
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query = rng.uniform(-1, 1, d).astype(np.float32)
        unit = np.abs(query).max() / 127.0
        away = query - unit * np.rint(query / unit)
        item = np.where(away >= 0, 7.5, -7.5)
        item *= np.sign(item @ query)
        across = rng.standard_normal(d)
        across -= across @ query / (query @ query) * query
        near = (1 - 1e-5) * (item @ query) / (query @ query) * query
        items = np.stack([near, 0.9 * near + 1e4 * across, item, -item]).astype(np.float32)
        index = made(items, [2, 2], sketch=True)
        assert index._contents.arrays["sketch_errors"][1] < 0.01
        assert index.top_k(query, 1).ids.tolist() == [2]


def test_clusters_need_not_begin_with_a_block():
    # A best item at every place of a block, in clusters of one to forty items.
    vectors = normal(820, 9, seed=4)
    index = softindex.build(vectors, clusters=40)
    for row in range(0, 820, 5):
        check_best(index, vectors[row], 3)


def test_a_sketch_reads_a_small_part_of_the_items():
    vectors = normal(20_000, 64) + 3 * normal(50, 64, seed=1)[np.random.default_rng(2).integers(50, size=20_000)]
    index = softindex.build(vectors, clusters=140)
    best = index.top_k(vectors[:20], 10)
    plain = softindex.build(vectors, clusters=140, sketch=False)
    other = plain.top_k(vectors[:20], 10)
    np.testing.assert_array_equal(best.ids, other.ids)
    np.testing.assert_array_equal(best.scores, other.scores)
    assert best.items_scored.mean() < 0.05 * 20_000
    assert plain.parameters["sketch"] is False
    assert (other.recall == 1.0).all()


def test_blocks_and_threads_do_not_change_the_sketch(monkeypatch):
    vectors, offsets = normal(1000, 11), np.array([0, 3, 500, 500, 1000])
    means = normal(4, 11, seed=3)
    calls = []
    one = draw_sketch(vectors, offsets, means, threads=3, report=lambda *call: calls.append(call))
    assert calls[-1] == ("sketching", 1000, 1000)
    monkeypatch.setattr(module, "BLOCK_VALUES", 1)
    other = draw_sketch(vectors, offsets, means, threads=1)
    for name in ("values", "scales", "errors", "lengths"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    check_statements(vectors, offsets, means, one)


WRONG = {
    "no scales": lambda s: changed(s, drop=["sketch_scales"]),
    "no recall": lambda s: changed(s, drop=["sketch_recall"]),
    "no sketch though it says so": lambda s: changed(s, drop=[name for name in s.arrays if name.startswith("sketch_")]),
    "a sketch though it says no": lambda s: changed(s, parameters={"sketch": False}),
    "short values": lambda s: changed(s, sketch_values=s.arrays["sketch_values"][:-1].copy()),
    "narrow values": lambda s: changed(s, sketch_values=s.arrays["sketch_values"][:, :0].copy()),
    "wide values": lambda s: changed(s, sketch_values=s.arrays["sketch_values"].astype(np.int16)),
    "negative scales": lambda s: changed(s, sketch_scales=-1 - s.arrays["sketch_scales"]),
    "errors that are no numbers": lambda s: changed(s, sketch_errors=np.nan * s.arrays["sketch_errors"]),
    "short recall": lambda s: changed(s, sketch_recall=s.arrays["sketch_recall"][:-1].copy()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_sketch_is_refused(name, tmp_path):
    softindex.build(normal(80, 6)).save(tmp_path / "index")
    save_stored(tmp_path / "wrong", WRONG[name](load_stored(tmp_path / "index")))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_an_engine_takes_an_index_without_a_sketch():
    index = softindex.build(normal(80, 6), sketch=False)
    assert not [name for name in index._contents.arrays if name.startswith("sketch")]
    make_engine(index._contents)
