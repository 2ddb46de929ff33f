"""An index in 8 or 16 bits per number: what it keeps, what it says it lost, and that all it answers is about that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from softindex.errors import CorruptIndexError, InputError
from softindex.kernels import Engine, _native
from softindex.records import Stored
from softindex.residuals import LARGEST, Decoded, stored_vectors
from softindex.store import load as load_stored
from softindex.store import save as save_stored
from softindex.testing import catalogues, queries, temperatures

few = settings(max_examples=40, deadline=None)
in_fewer_bits = pytest.mark.parametrize("storage", ["int8", "int16"])


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def grouped(n=2000, d=24, groups=20, seed=0):
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.standard_normal((groups, d))
    return (centres[rng.integers(groups, size=n)] + 0.5 * rng.standard_normal((n, d))).astype(np.float32)


def arrays_of(index):
    return index._contents.arrays


@in_fewer_bits
@few
@given(data=st.data())
def test_an_item_is_its_centre_plus_scaled_integers_and_nothing_else_is_kept(storage, data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, storage=storage)
    arrays, offsets = arrays_of(index), index.items.offsets
    assert arrays["residual_values"].dtype == storage
    assert not {"vectors", "sketch_values", "code_values"} & arrays.keys()
    clusters = np.repeat(np.arange(index.clusters), index.sizes)
    exact = arrays["residual_centres"][clusters].astype(np.longdouble)
    exact += arrays["residual_values"].astype(np.longdouble) * arrays["residual_scales"][:, None].astype(np.longdouble)
    np.testing.assert_array_equal(index.vectors(index.ids), exact.astype(np.float64).astype(np.float32))
    assert offsets[-1] == len(index)
    lengths = np.sqrt(((exact - arrays["residual_centres"][clusters]) ** 2).sum(axis=1))
    assert (lengths <= arrays["residual_lengths"][clusters]).all()


@in_fewer_bits
@few
@given(data=st.data())
def test_the_build_says_how_far_the_items_are_from_the_vectors_given(storage, data):
    catalogue = data.draw(catalogues())
    vectors = catalogue.vectors
    index = softindex.build(vectors, clusters=catalogue.clusters, storage=storage)
    stored, stated = index.vectors(np.arange(len(vectors))), index.parameters["rounding"]
    lost = np.sqrt(((vectors.astype(np.longdouble) - stored) ** 2).sum(axis=1))
    assert lost.max() <= stated["largest"] <= 1.001 * float(lost.max()) + 1e-30
    assert stated["mean"] == pytest.approx(float(lost.mean()), rel=1e-6, abs=1e-30)
    total = np.linalg.norm(vectors.astype(float))
    assert stated["relative"] == pytest.approx(float(np.sqrt((lost**2).sum())) / total if total else 0.0, abs=1e-12)
    # Half a step a coordinate, and half a unit in the last place of float32.
    step = np.abs(vectors).max() * 2 / LARGEST[storage]
    assert lost.max() <= (0.5 * step + 2.0**-23 * np.abs(vectors).max()) * vectors.shape[1] ** 0.5 + 1e-25


@in_fewer_bits
def test_no_logit_moves_farther_than_the_rounding_allows(storage):
    vectors, batch = grouped(), grouped(8, seed=1)
    plain, small = softindex.build(vectors), softindex.build(vectors, storage=storage)
    every = np.arange(len(vectors))
    for temperature in (0.5, 5.0):
        allowed = np.linalg.norm(batch, axis=1) * small.parameters["rounding"]["largest"] / temperature
        before = plain.log_prob(batch, every, temperature=temperature, method="exact")
        after = small.log_prob(batch, every, temperature=temperature, method="exact")
        # A logit moves by `allowed` at most, and so does log Z.
        moved = np.abs(before - after).max(axis=1)
        assert (moved <= 2 * allowed + 1e-3).all()
        assert (moved > 0).all()


@in_fewer_bits
@few
@given(data=st.data())
def test_bounds_of_log_z_hold_for_what_is_stored(storage, data):
    catalogue = data.draw(catalogues())
    options = {"clusters": catalogue.clusters, "log_bias": catalogue.log_bias}
    bias = normal(1, len(catalogue.vectors), 5)[0] if data.draw(st.booleans()) else None
    index = softindex.build(catalogue.vectors, bias=bias, storage=storage, **options)
    batch, temperature = data.draw(queries(index.dim)), data.draw(temperatures())
    items = index.items
    logits = items.scores(slice(None), batch.astype(np.float64).T) / temperature
    logits = logits if items.log_bias is None else logits + items.log_bias[:, None]
    truth = np.logaddexp.reduce(logits, axis=0)
    for method in ("exact", "certified"):
        found = index.log_partition(batch, temperature=temperature, method=method)
        assert (found.low <= truth).all()
        assert (truth <= found.high).all()
        draws = index.sample(batch, 3, temperature=temperature, method=method, seed=1)
        assert (draws.log_partition.low <= truth).all()
        assert (truth <= draws.log_partition.high).all()


@in_fewer_bits
@pytest.mark.parametrize("sketch", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_the_best_items_are_those_of_what_is_stored(storage, sketch, biased):
    vectors, batch = grouped(), grouped(30, seed=1)
    bias = normal(1, len(vectors), 3)[0] * 10 if biased else None
    index = softindex.build(vectors, bias=bias, storage=storage, sketch=sketch)
    scores = np.sort(index.items.scores(slice(None), batch.astype(np.float64).T), axis=0)[::-1][:10].T
    found = index.top_k(batch, 10)
    assert found.proven.all()
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-4)
    assert (found.items_scored < len(index)).any()
    np.testing.assert_array_equal(index.top_k(batch[3], 10).ids, found.ids[3])


@in_fewer_bits
def test_a_bias_is_kept_as_it_was_given_however_large(storage):
    vectors = grouped()
    bias = normal(1, len(vectors), 3)[0] * 1000
    index = softindex.build(vectors, bias=bias, storage=storage)
    np.testing.assert_array_equal(index.items.bias, bias[index.ids])
    assert index.items.vectors.shape == vectors.shape
    # A coordinate of a thousand among those of one would leave no bits to them.
    assert index.parameters["rounding"]["largest"] < 0.3
    plain = softindex.build(vectors, storage=storage)
    assert index.vectors(7).shape == plain.vectors(7).shape == (24,)


@in_fewer_bits
def test_decoded_vectors_are_indexed_like_an_array(storage):
    index = softindex.build(grouped(300), clusters=9, storage=storage, bias=np.ones(300, np.float32))
    vectors = stored_vectors(arrays_of(index))
    assert isinstance(vectors, Decoded)
    every = np.asarray(vectors)
    assert vectors.shape == every.shape == (300, 25)
    assert (vectors.dtype, vectors.ndim, vectors.size, vectors.nbytes) == (every.dtype, 2, every.size, every.nbytes)
    keys = [3, -1, slice(None), slice(40, 40), slice(50, 20), slice(3, 200), slice(-7, None), slice(5, 90, 7)]
    keys += [slice(None, None, -1), [4, 4, -2], np.array([], np.int64), np.arange(300) % 3 == 0]
    keys += [(slice(0, 9), 2), (5, slice(2, 4)), (slice(None), slice(None, 7))]
    for key in keys:
        np.testing.assert_array_equal(vectors[key], every[key])
    for key in keys[:9]:
        np.testing.assert_array_equal(vectors.between(100, 250)[key], every[100:250][key])
    np.testing.assert_array_equal(np.asarray(vectors.without_bias()), every[:, :-1])
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(vectors, copy=False)
    with pytest.raises(IndexError):
        vectors[300]


@in_fewer_bits
def test_the_index_is_the_same_from_a_file_and_with_any_number_of_threads(storage, tmp_path):
    vectors = grouped(5000, 40)
    np.save(tmp_path / "vectors.npy", vectors)
    first = softindex.build(vectors, storage=storage, threads=1)
    others = [
        softindex.build(vectors, storage=storage, threads=3),
        softindex.build(tmp_path / "vectors.npy", storage=storage),
    ]
    for other in others:
        assert other.parameters == first.parameters
        for name, array in arrays_of(first).items():
            np.testing.assert_array_equal(arrays_of(other)[name], array)


@in_fewer_bits
def test_every_target_gives_the_same_scores(storage):
    index = softindex.build(grouped(d=33), bias=normal(1, 2000, 2)[0], storage=storage)
    batch = np.hstack([grouped(9, 33, seed=1), np.ones((9, 1), np.float32)])
    law = softindex.laws.LAWS["exact"]
    found = []
    for target in _native.targets():
        masses, error, scored = np.empty((9, index.clusters)), np.empty(9), np.empty(9, np.int64)
        Engine(dict(arrays_of(index)), target).masses(_native.Request(batch, law, 0.3), masses, error, scored)
        found.append(masses)
    for masses in found[1:]:
        np.testing.assert_array_equal(found[0], masses)


@in_fewer_bits
def test_trees_exclusions_and_slates_work(storage):
    index = softindex.build(grouped(), tree=True, leaf_items=50, storage=storage)
    query = grouped(1, seed=1)[0]
    for method in ("sd-hierarchical", "sd-2ls", "exact"):
        slate = index.sample(query, 50, temperature=1.0, method=method, replace=False, exclude=np.arange(1000), seed=2)
        assert len(np.unique(slate.ids)) == 50
        assert (slate.ids >= 1000).all()
        law = index.log_prob(query, np.arange(2000), temperature=1.0, method=method)
        assert np.exp(law).sum() == pytest.approx(1.0, abs=1e-4)


@in_fewer_bits
def test_an_audit_compares_with_what_is_stored(storage):
    vectors = grouped()
    plain, small = softindex.build(vectors, sketch=False), softindex.build(vectors, storage=storage)
    given = grouped(20, seed=1)
    audits = [index.audit(given, temperatures=[1.0]) for index in (plain, small)]
    exact = [next(row for row in audit.rows if row.method == "exact") for audit in audits]
    assert exact[1].memory < (0.35 if storage == "int8" else 0.65) * exact[0].memory
    said = audits[1].parameters
    assert said["storage"] == storage
    moved = max(np.linalg.norm(given, axis=1)) * small.parameters["rounding"]["largest"]
    assert said["logits_moved_by"] == [pytest.approx(moved, rel=0.06)]
    assert "logits_moved_by" not in audits[0].parameters
    assert said["index_bytes"] == sum(array.nbytes for array in arrays_of(small).values()) + sum(
        array.nbytes for array in small._contents.ids.arrays().values()
    )


@in_fewer_bits
def test_a_subset_holds_the_same_items_as_floats(storage, tmp_path):
    index = softindex.build(grouped(), bias=normal(1, 2000, 3)[0], storage=storage)
    some = index.subset(np.arange(0, 2000, 3))
    np.testing.assert_array_equal(some.vectors([3, 9]), index.vectors([3, 9]))
    assert some.parameters["storage"] == "float32"
    query = grouped(1, seed=1)[0]
    found = some.log_partition(query, temperature=1.0, method="exact")
    rest = np.setdiff1d(np.arange(2000), np.arange(0, 2000, 3))
    assert found.value == pytest.approx(
        index.log_partition(query, temperature=1.0, method="exact", exclude=rest).value, abs=1e-4
    )
    some.save(tmp_path / "some")
    assert len(softindex.load(tmp_path / "some", verify=True)) == len(some)


def test_what_does_not_go_together_is_refused(tmp_path):
    vectors = grouped(100)
    with pytest.raises(InputError, match="storage is 'int4'; expected one of float32, int16, int8"):
        softindex.build(vectors, storage="int4")
    with pytest.raises(InputError, match="codes are kept beside float32 vectors"):
        softindex.build(vectors, storage="int8", codes=True)
    small = softindex.build(vectors, storage="int8")
    for create, options in ((small, {}), (vectors, {"storage": "int8"})):
        with pytest.raises(InputError, match="keeps float32 vectors"):
            softindex.open(tmp_path / "live", create=create, **options)
    assert not (tmp_path / "live").exists()


LIES = {
    "residual_lengths": lambda array: array * np.float32(0.99),
    "residual_scales": lambda array: np.where(np.arange(len(array)) == 5, np.float32(1e-35), array),
    "residual_values": lambda array: np.where(np.arange(len(array))[:, None] == 5, np.int8(-128), array),
    "residual_centres": lambda array: array * np.float32(1.5),
    "radii": lambda array: array * np.float32(0.9),
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_states_something_else_than_it_holds_is_refused(name, tmp_path):
    softindex.build(grouped(200), storage="int8", bias=np.ones(200, np.float32)).save(tmp_path / "index")
    stored = load_stored(tmp_path / "index", mmap=False)
    arrays = {**stored.arrays, name: LIES[name](stored.arrays[name])}
    assert arrays[name].dtype == stored.arrays[name].dtype
    save_stored(tmp_path / "lie", Stored(stored.kind, stored.parameters, arrays, stored.version))
    with pytest.raises(CorruptIndexError, match="does not agree"):
        softindex.load(tmp_path / "lie")


@pytest.mark.parametrize(
    "change",
    [
        {"storage": "int16"},
        {"storage": "float32"},
        {"storage": 8},
        {"rounding": None},
        {"rounding": {"largest": 0.1, "mean": "0.1", "relative": 0.1}},
        {"rounding": {"largest": -0.1, "mean": 0.1, "relative": 0.1}},
        {"bias": True},
    ],
)
def test_parameters_that_lie_are_refused(change, tmp_path):
    softindex.build(grouped(200), storage="int8").save(tmp_path / "index")
    stored = load_stored(tmp_path / "index", mmap=False)
    for version in (2, 3):
        lie = Stored(stored.kind, {**stored.parameters, **change}, stored.arrays, version)
        save_stored(tmp_path / f"lie {version}", lie)
        with pytest.raises(CorruptIndexError):
            softindex.load(tmp_path / f"lie {version}")
