"""A subset is the index of its items: its laws are those of these items alone, and its bounds hold for them."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import softindex
from softindex.contents import from_stored, to_stored
from softindex.kernels import Request
from softindex.laws import find_law
from softindex.statements import check_items
from softindex.testing import LawContract, chi_square_score
from softindex.testing.strategies import Catalogue
from tests.live.catalogues import check_snapshot, dense

N, D = 1500, 7


class SubsetContract(LawContract):
    """The laws of the catalogue, as a part of an index that holds other items as well."""

    def build(self, catalogue, **changes):
        rng = np.random.default_rng(2)
        n, d = catalogue.vectors.shape
        scale = float(np.abs(catalogue.vectors).max()) or 1.0
        # Copies that moved a little, in the same clusters, and some items elsewhere.
        near = catalogue.vectors[rng.integers(n, size=n)] + scale * 0.05 * rng.standard_normal((n, d))
        others = np.concatenate([near, scale * rng.standard_normal((3, d))]).astype(np.float32)
        bias = changes.pop("log_bias", catalogue.log_bias)
        if bias is not None:
            bias = np.concatenate([bias, bias[rng.integers(n, size=len(others))]])
        larger = Catalogue(np.concatenate([catalogue.vectors, others]), catalogue.clusters, bias)
        return super().build(larger, **changes).subset(np.arange(n))

    # One item per cluster of the index is not one per cluster of its subset, and ids that it leaves out are ignored in
    # exclude: another test is about these.
    test_one_item_per_cluster_is_the_exact_softmax = None
    test_unknown_ids_are_refused = None

    def test_a_saved_index_gives_identical_draws_for_the_same_seed(self):
        index = LawContract.build(self, self._catalogue())
        view = index.subset(np.arange(0, 300, 2))
        batch = np.random.default_rng(3).standard_normal((11, index.dim)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            index.save(Path(folder) / "saved", subsets={"even": view})
            for mmap in (True, False):
                loaded = softindex.load(Path(folder) / "saved", mmap=mmap)
                assert loaded.subsets == ("even",)
                before, after = (self.draw(one, batch, 5, seed=2) for one in (view, loaded.subset("even")))
                np.testing.assert_array_equal(before.ids, after.ids)
                np.testing.assert_array_equal(before.log_prob, after.log_prob)


class TestExactSubset(SubsetContract):
    method = "exact"
    exact = True


class TestCertifiedSubset(SubsetContract):
    method = "certified"
    exact = True


class TestTwoLevelSubset(SubsetContract):
    method = "2ls"
    options: ClassVar = {"probes": 0}
    counts_weights = False


class TestDefaultSubset(SubsetContract):
    method = "sd-2ls"


KINDS = {
    "rank": {"dispersion": 3},
    "full": {"dispersion": "full"},
    "none": {"dispersion": "none"},
    "biased": {"dispersion": 3, "log_bias": True},
    "bias": {"dispersion": 3, "bias": True},
    "strings": {"dispersion": 3, "ids": True},
}
SHARES = {"nearly all": 0.98, "most": 0.7, "some": 0.3, "few": 0.02}


def make_items():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((12, D))
    vectors = centres[rng.integers(12, size=N)] + 0.4 * rng.standard_normal((N, D))
    lengths = rng.choice([0.3, 1.0, 2.0], (N, 1))
    bias, log_bias = rng.standard_normal(N), rng.choice([0.0, -3.0, 5.0], N)
    return (vectors * lengths).astype(np.float32), bias.astype(np.float32), log_bias.astype(np.float32)


VECTORS, BIAS, LOG_BIAS = make_items()
QUERIES = np.random.default_rng(4).standard_normal((3, D)).astype(np.float32)


@pytest.fixture(scope="module", params=KINDS)
def parent(request):
    """An index, and its items: id -> (vector, log bias), a bias being one more coordinate."""
    options = dict(KINDS[request.param])
    vectors, prior = VECTORS, np.zeros(N)
    ids = [f"item {i}" for i in range(N)] if options.pop("ids", False) else list(range(N))
    if "log_bias" in options:
        options["log_bias"] = prior = LOG_BIAS
    if "bias" in options:
        options["bias"] = BIAS
        vectors = np.hstack([VECTORS, BIAS[:, None]])
    index = softindex.build(VECTORS, ids=ids, clusters=25, **options)
    return index, {name: (vectors[i], float(prior[i])) for i, name in enumerate(ids)}


def chosen_ids(index, share, seed=1):
    return np.random.default_rng(seed).choice(index.ids, max(1, round(share * len(index))), replace=False)


def parts(index):
    """Subsets of every kind: scattered items, entire clusters, one item, and a part of a part."""
    cuts = index.items.offsets
    found = {name: index.subset(chosen_ids(index, share)) for name, share in SHARES.items()}
    found["clusters"] = index.subset(index.ids[cuts[3] : cuts[9]])
    found["one"] = index.subset(index.ids[:1])
    found["part of a part"] = found["most"].subset(chosen_ids(found["most"], 0.6, seed=2))
    found["everything"] = index.subset(index.ids)
    return found


def test_every_law_is_one_over_the_items_of_the_subset(parent):
    index, model = parent
    if index.parameters["bias"]:
        pytest.skip("the model has no bias; the laws with one are those of another test")
    for name, part in parts(index).items():
        kept = {one: model[one] for one in part.ids.tolist()}
        assert set(kept) <= set(model), name
        check_snapshot(part, kept, QUERIES)


def test_a_subset_of_items_with_a_bias_is_the_index_of_these_items():
    index = softindex.build(VECTORS, bias=BIAS, log_bias=LOG_BIAS, clusters=25)
    for share in SHARES.values():
        kept = np.sort(chosen_ids(index, share))
        part = index.subset(kept)
        alone = softindex.build(VECTORS[kept], ids=kept, bias=BIAS[kept], log_bias=LOG_BIAS[kept], clusters=5)
        for method in ("exact", "certified"):
            laws = [one.log_prob(QUERIES, kept, temperature=0.5, method=method) for one in (part, alone)]
            np.testing.assert_allclose(*laws, atol=2e-4)
        k = min(6, len(kept))
        best = [one.top_k(QUERIES, k, temperature=0.5) for one in (part, alone)]
        np.testing.assert_allclose(best[0].scores, best[1].scores, atol=1e-4)
        np.testing.assert_array_equal(best[0].ids, best[1].ids)


def test_radii_norms_cones_and_outliers_bound_the_items_left(parent):
    index, _ = parent
    for part in parts(index).values():
        check_items(dense(part))


def test_sizes_and_means_are_those_of_the_items_left(parent):
    index, model = parent
    for part in parts(index).values():
        arrays, cuts, ids = part._contents.arrays, np.cumsum(part.sizes)[:-1], part.ids
        for c, members in enumerate(np.split(ids, cuts)):
            weights = np.exp([model[one][1] for one in members.tolist()])
            items = np.array([model[one][0] for one in members.tolist()], np.float64)
            assert arrays["log_sizes"][c] == pytest.approx(np.log(weights.sum()), abs=1e-6)
            np.testing.assert_allclose(arrays["means"][c], weights @ items / weights.sum(), atol=1e-5)


def test_the_bounds_of_every_cluster_hold(parent):
    index, _ = parent
    law = find_law("certified", index.parameters["dispersion"], False)
    for part in parts(index).values():
        k = part.clusters
        for temperature in (0.05, 0.5, 5.0):
            for query in QUERIES:
                row = np.r_[query, np.ones(int(index.parameters["bias"]), np.float32)][None].astype(np.float32)
                lower, upper, scanned = np.empty(k), np.empty(k), np.empty(k)
                part._engine.mass_bounds(Request(row, law, temperature), lower, upper, scanned)
                assert (lower <= scanned).all()
                assert (scanned <= upper).all()


@pytest.mark.parametrize("share", SHARES.values())
def test_the_best_items_are_those_of_brute_force(share):
    index = softindex.build(VECTORS, clusters=25)
    kept = np.sort(chosen_ids(index, share))
    part, k = index.subset(kept), min(10, len(kept))
    assert part.parameters["sketch"]
    truth = QUERIES.astype(np.float64) @ VECTORS[kept].T.astype(np.float64)
    wanted = kept[np.argsort(-truth, axis=1)[:, :k]]
    proven = part.top_k(QUERIES, k)
    np.testing.assert_array_equal(proven.ids, wanted)
    assert proven.proven.all()
    plain = index.subset(kept, sketch=False)
    np.testing.assert_array_equal(plain.top_k(QUERIES, k).ids, wanted)
    about = part.top_k(QUERIES, k, recall=0.9)
    assert set(about.ids.ravel().tolist()) <= set(kept.tolist())
    some = part.top_k(QUERIES, k, probes=2)
    assert (some.gap >= 0).all()


def test_a_subset_shares_the_vectors_and_copies_few():
    index = softindex.build(VECTORS, clusters=25)
    vectors = index._contents.arrays["vectors"]
    most, few = index.subset(chosen_ids(index, 0.9)), index.subset(chosen_ids(index, 0.1))
    shared = [array for name, array in most._contents.arrays.items() if name.startswith("segment.")]
    assert any(array is vectors for array in shared)
    assert not any(array is vectors for name, array in few._contents.arrays.items() if name.startswith("segment."))
    assert len(few._contents.positions()) == int(few._contents.arrays["offsets"][-1]) == len(few)


def clustered(n, seed):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((150, 24))
    vectors = centres[rng.choice(150, n, p=np.arange(1, 151) / 11325)] + 0.5 * rng.standard_normal((n, 24))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("share", [0.9, 0.6, 0.2])
def test_the_stated_error_is_as_honest_as_that_of_an_index_of_the_same_items(share):
    """At most 2 % of held-out queries may exceed twice the stated error plus 0.01."""
    vectors, queries = clustered(20_000, 1), clustered(150, 2)
    index = softindex.build(vectors, clusters=140)
    part = index.subset(np.sort(chosen_ids(index, share)))
    for temperature in (0.05, 0.1):
        exact = np.exp(part.log_prob(queries, part.ids, temperature=temperature, method="exact"))
        law = np.exp(part.log_prob(queries, part.ids, temperature=temperature, tolerance=0.2))
        stated = part.sample(queries, temperature=temperature, tolerance=0.2, seed=0).error
        measured = 0.5 * np.abs(exact - law).sum(axis=1)
        assert (measured > 2 * stated + 0.01).mean() <= 0.02
        np.testing.assert_allclose(law.sum(axis=1), 1.0, atol=1e-5)


def test_draws_of_the_default_fit_its_law_and_never_leave_the_subset():
    """Chi-square on 40,000 draws; false alarm about 3e-7."""
    index = softindex.build(VECTORS, clusters=25)
    part = index.subset(index.ids < 700)
    law = part.log_prob(QUERIES[0], part.ids, temperature=1.0)
    draws = part.sample(QUERIES[0], 40_000, temperature=1.0, seed=1)
    assert draws.ids.max() < 700
    order = np.argsort(part.ids)
    counts = np.bincount(np.searchsorted(part.ids[order], draws.ids), minlength=len(part))
    assert chi_square_score(counts, np.exp(law[order])) < 5


def test_slates_nuclei_and_exclusions_work_in_a_subset():
    index = softindex.build(VECTORS, clusters=25)
    part = index.subset(index.ids < 700)
    kept = set(range(700))
    for options in ({"replace": False}, {"top_p": 0.9}, {"method": "top-k", "k": 30}, {"exclude": np.arange(600)}):
        draws = part.sample(QUERIES, 20, temperature=1.0, seed=1, **options)
        assert set(draws.ids.ravel().tolist()) <= kept
    # Ids that the subset leaves out are common in exclude.
    draws = part.sample(QUERIES, 20, temperature=1.0, exclude=np.arange(600, 1000), seed=1)
    assert draws.ids.max() < 600
    with pytest.raises(softindex.UnknownIdError):
        part.sample(QUERIES, temperature=1.0, exclude=[1000], unknown="error")
    with pytest.raises(softindex.UnknownIdError, match="not in this subset"):
        part.log_prob(QUERIES, [1000], temperature=1.0)
    assert np.isneginf(part.log_prob(QUERIES, [1000], temperature=1.0, missing="-inf")).all()


def test_a_subset_is_saved_as_an_index_of_its_own(parent, tmp_path):
    index, _ = parent
    part = index.subset(chosen_ids(index, 0.4))
    part.save(tmp_path / "part")
    loaded = softindex.load(tmp_path / "part", verify=True)
    np.testing.assert_array_equal(loaded.ids, part.ids)
    np.testing.assert_array_equal(loaded.items.vectors, part.items.vectors)
    laws = [one.log_prob(QUERIES, part.ids, temperature=0.5, method="exact") for one in (part, loaded)]
    np.testing.assert_allclose(*laws, atol=1e-5)
    assert loaded.parameters["sketch"] == index.parameters["sketch"]


def test_named_subsets_stay_with_the_index_through_saving_and_calibrating(tmp_path):
    index = softindex.build(VECTORS, clusters=25)
    cheap, new = index.subset(index.ids % 3 == 0), index.ids >= 1400
    index.save(tmp_path / "first", subsets={"cheap": cheap, "new": new})
    loaded = softindex.load(tmp_path / "first", verify=True)
    loaded.calibrate(QUERIES.repeat(5, axis=0), temperatures=0.5).save(
        tmp_path / "second", subsets={"one": [7]}, progress=False
    )
    again = softindex.load(tmp_path / "second")
    assert again.subsets == ("cheap", "new", "one")
    np.testing.assert_array_equal(np.sort(again.subset("cheap").ids), np.arange(0, N, 3))
    np.testing.assert_array_equal(np.sort(again.subset("new").ids), np.arange(1400, N))
    assert again.subset("one").ids.tolist() == [7]
    with pytest.raises(softindex.InputError, match="it has 'cheap', 'new', 'one'"):
        again.subset("old")
    part = again.subset("cheap")
    part.save(tmp_path / "third", subsets={"first": part.ids[:5]})
    np.testing.assert_array_equal(softindex.load(tmp_path / "third").subset("first").ids, part.ids[:5])


def test_bad_subsets_are_refused_in_a_sentence(tmp_path):
    index = softindex.build(VECTORS[:50])
    for wrong, match in (
        ([], "needs an item"),
        (np.zeros(50, bool), "needs an item"),
        (np.ones(49, bool), "one entry for each"),
        (np.ones((50, 1), bool), "one entry for each"),
        (7, "neither ids nor a mask"),
        ("cheap", "there is no subset 'cheap' in this index; it has none"),
        ([0.5], "float ids"),
        ([[1], [2]], "nested"),
    ):
        with pytest.raises(softindex.InputError, match=match):
            index.subset(wrong)
    with pytest.raises(softindex.UnknownIdError):
        index.subset([1, 1000])
    assert index.subset([1, 1, 1000], unknown="ignore").ids.tolist() == [1]
    for wrong in ({"": [1]}, {1: [1]}, [1], {"none": []}):
        with pytest.raises(softindex.InputError):
            index.save(tmp_path / "index", subsets=wrong)
    assert not (tmp_path / "index").exists()
    with pytest.raises(softindex.MethodError, match="tree"):
        softindex.build(VECTORS, tree=True).subset([1, 2]).sample(QUERIES, temperature=1.0, method="hierarchical")


def test_the_audit_and_the_calibration_of_a_subset_are_its_own():
    index = softindex.build(VECTORS, clusters=25)
    part = index.subset(index.ids < 900)
    audit = part.audit(QUERIES, temperatures=[0.5], methods=["exact", "certified", "sd-2ls"])
    assert all(row.kl.value < 1e-2 for row in audit.rows)
    rng = np.random.default_rng(8)
    calibrated = part.calibrate(rng.standard_normal((40, D)).astype(np.float32), temperatures=0.5)
    assert calibrated.sample(QUERIES, temperature=0.5, seed=0).confidence == 0.9
    assert part.calibration is None
    assert index.subset(index.ids < 900).calibration is None


def test_a_subset_of_a_snapshot_keeps_its_number_and_never_holds_a_removed_item(tmp_path):
    live = softindex.open(tmp_path / "live", create=VECTORS, compaction="manual")
    live.upsert(np.arange(N, N + 60), VECTORS[:60] + 0.01)
    live.remove(np.arange(100, 400))
    snapshot = live.snapshot()
    model = {i: (VECTORS[i], 0.0) for i in range(N) if not 100 <= i < 400}
    model |= {N + i: (VECTORS[i] + np.float32(0.01), 0.0) for i in range(60)}
    rng = np.random.default_rng(6)
    for share in (0.95, 0.5, 0.1):
        part = snapshot.subset(rng.random(len(snapshot)) < share)
        assert part.snapshot == snapshot.snapshot
        kept = {one: model[one] for one in part.ids.tolist()}
        check_snapshot(part, kept, QUERIES)
    with pytest.raises(softindex.UnknownIdError):
        snapshot.subset([150])
    live.remove(np.arange(1000, 1200))
    check_snapshot(part, kept, QUERIES)
    live.close()


def test_saved_subsets_that_do_not_fit_the_index_are_refused():
    stored = to_stored(softindex.build(VECTORS[:50])._with_subsets({"a": [1], "b": [2]}))
    assert from_stored(stored).subsets.keys() == {"a", "b"}
    bits = stored.arrays["subset.0"]
    past_the_end = bits.copy()
    past_the_end[-1] |= 1
    for changed in (bits[:-1], np.append(bits, 1).astype(np.uint8), bits.astype(np.int64), bits * 0, past_the_end):
        with pytest.raises(softindex.CorruptIndexError):
            from_stored(replace(stored, arrays={**stored.arrays, "subset.0": changed}))
    for names in (["a"], ["a", "a"], ["a", "b", "c"], ["a", ""], ["a", 1], "ab", None, []):
        with pytest.raises(softindex.CorruptIndexError):
            from_stored(replace(stored, parameters={**stored.parameters, "subsets": names}))
    unnamed = {name: value for name, value in stored.parameters.items() if name != "subsets"}
    with pytest.raises(softindex.CorruptIndexError):
        from_stored(replace(stored, parameters=unnamed))
