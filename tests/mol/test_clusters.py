"""The search by clusters: scores expanded around the means of clusters, and the candidates that they give."""

import numpy as np
import pytest
from made_similarities import KINDS, Given, assert_same, gate, load, queries_of, similarity, truth, unit

from softindex.errors import CorruptIndexError, InputError
from softindex.fields import flatten
from softindex.kernels import NativeMixture, targets
from softindex.mol import build
from softindex.mol.clusters import ItemClusters, default_clusters
from softindex.mol.index import KIND
from softindex.mol.queries import encode
from softindex.mol.reference import cluster_candidates, expansions, scores
from softindex.mol.scorer import pack
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored

NONE = np.zeros(2, np.int64), np.zeros(0, np.int64)


def grouped(kind="mixture", n=1500, parts=(4, 3), d=6, groups=20, noise=0.2):
    """A similarity whose items come in groups, in no order."""
    given = similarity(kind, n, parts=parts, d=d)
    rng = np.random.default_rng(5)
    group = rng.integers(min(groups, n), size=n)
    given.components = unit(given.components[group] + noise * rng.standard_normal(given.components.shape))
    if given.gates is not None:
        given.gates = given.gates[group] + (noise * rng.standard_normal(given.gates.shape)).astype(np.float32)
    return given


def clustered(given, rows, **options):
    """An index with clusters, which by default only a gate brings."""
    return build(given, rows, clusters=default_clusters(len(rows)), **options)


def clusters_of(index):
    return index._snapshot.clusters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 50, 1500])
def test_clusters_hold_every_item_once_around_their_means(kind, n):
    given = grouped(kind, n)
    clusters = clusters_of(clustered(given, np.arange(n)))
    assert len(clusters) == default_clusters(n)
    np.testing.assert_array_equal(np.sort(clusters.order), np.arange(n))
    np.testing.assert_array_equal(clusters.order[clusters.places()], np.arange(n))
    basis = clusters.basis.reshape(len(clusters.basis), -1)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-5)
    for c in range(len(clusters)):
        place = slice(*clusters.offsets[c : c + 2])
        members = clusters.order[place]
        if len(members):
            differences = (given.components[members] - clusters.centres[c]).reshape(len(members), -1)
            np.testing.assert_allclose(differences.mean(axis=0), 0, atol=1e-6)
            np.testing.assert_allclose(clusters.features[place], differences @ basis.T, atol=1e-5)
            root = np.sqrt(np.square(clusters.features[place]).mean(axis=0))
            np.testing.assert_allclose(clusters.spreads[c], root, rtol=1e-4, atol=1e-6)
            if given.gates is not None:
                np.testing.assert_allclose(given.gates[members].mean(axis=0), clusters.gates[c], atol=1e-5)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("parts", "d"), [((4, 3), 6), ((8, 4), 32), ((1, 5), 7), ((5, 1), 3)])
def test_candidates_are_those_of_the_reference(target, kind, parts, d):
    given = grouped(kind, parts=parts, d=d)
    clusters = ItemClusters.fit(given.components, given.gates, 40)
    arrays = {"components": given.components, "averages": np.ascontiguousarray(given.components.mean(axis=1))}
    arrays |= {} if given.gates is None else {"gates": given.gates}
    arrays |= {} if given.known.gate is None else flatten(given.known.gate, "gate.")
    native = NativeMixture(arrays | flatten(clusters, "clusters."), given.known.query_components, target)
    side = encode(given.known, queries_of(given, 7), None)
    centre_scores, slopes = expansions(given.known, clusters, side.components, side.gates)
    queries = pack((side.components / np.float64(given.known.temperature)).astype(np.float32))
    for keep, scanned in ((10, 30), (30, 300), (200, 200), (1500, 1500)):
        found = np.empty((7, keep), np.int64)
        native.best_clustered(queries, side.gates, *NONE, scanned, 2, found)
        for q in range(7):
            expected = cluster_candidates(clusters, centre_scores[q], slopes[q], keep, scanned)
            np.testing.assert_array_equal(found[q], np.sort(expected))


@pytest.mark.parametrize("kind", ["mixture", "logits"])
def test_slopes_are_the_derivatives_of_the_score(kind):
    """Compared with differences of scores at two items close to the centre, along each direction."""
    given = grouped(kind, 200)
    clusters = ItemClusters.fit(given.components, given.gates, 5)
    side, step = encode(given.known, queries_of(given), None), 1e-5
    _, slopes = expansions(given.known, clusters, side.components, side.gates)
    for r, direction in enumerate(clusters.basis.astype(np.float64)):
        up, down = (
            scores(given.known, side.components, clusters.centres + sign * direction, side.gates, clusters.gates)
            for sign in (step, -step)
        )
        np.testing.assert_allclose(slopes[:, :, r], (up - down) / (2 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["logits", "largest"])
def test_an_expansion_is_exact_where_weights_are_constant_and_the_basis_is_complete(kind):
    """A gate whose last layer is zero weighs all pairs equally; so does one logit for each part of the query."""
    parts = (4, 3) if kind == "logits" else (4, 1)
    given = grouped(kind, 300, parts=parts, d=5)
    if kind == "logits":
        given.known.gate.second[:] = 0
    clusters = ItemClusters.fit(given.components, None, 12)
    assert len(clusters.basis) == parts[1] * 5
    queries = queries_of(given)
    centre_scores, slopes = expansions(given.known, clusters, queries)
    labels = np.repeat(np.arange(12), np.diff(clusters.offsets))
    expanded = centre_scores[:, labels] + np.einsum("bnr,nr->bn", slopes[:, labels], clusters.features)
    np.testing.assert_allclose(expanded, scores(given.known, queries, given.components)[:, clusters.order], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_best_of_the_candidates_and_all_candidates_are_all_items(kind):
    given = grouped(kind)
    made, queries = clustered(given, np.arange(1500)), queries_of(given)
    true = truth(given, queries)
    for candidates in (20, 100, 1500):
        found = made.top_k(queries, 20, method="clusters", candidates=candidates)
        assert (found.items_scored == candidates).all()
        np.testing.assert_allclose(found.scores, np.take_along_axis(true, found.ids, axis=1), rtol=1e-5)
        assert (np.diff(found.scores, axis=1) <= 0).all()
        assert all(len(set(ids)) == 20 for ids in found.ids.tolist())
        others = true.copy()
        np.put_along_axis(others, found.ids, -np.inf, axis=1)
        assert (others.max(axis=1) - found.scores[:, -1] <= found.gap + 1e-4).all()
    np.testing.assert_array_equal(found.ids, made.top_k(queries, 20, method="brute-force").ids)


def test_a_fraction_of_the_items_holds_the_best_ones_where_items_come_in_groups():
    given = grouped(n=5000, noise=0.1)
    made, queries = build(given, np.arange(5000)), queries_of(given, 50)
    best = made.top_k(queries, 10).ids

    def recall(method):
        found = made.top_k(queries, 10, method=method, candidates=250).ids
        return np.mean([np.isin(ids, true).mean() for ids, true in zip(found, best, strict=True)])

    assert recall("clusters") > 0.8 > recall("average")


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_gets_the_same_candidates_in_any_batch_with_any_threads(kind):
    given = grouped(kind)
    made, queries = clustered(given, np.arange(1500)), queries_of(given, 40)
    whole = made.top_k(queries, 15, method="clusters", candidates=60, threads=1)
    assert_same(whole, made.top_k(queries, 15, method="clusters", candidates=60, threads=3))
    for q in (0, 17, 39):
        assert_same(whole, made.top_k(queries[q], 15, method="clusters", candidates=60), q)


def test_excluded_items_are_neither_returned_nor_counted():
    given = grouped()
    made, queries = clustered(given, np.arange(1500)), queries_of(given)
    true = truth(given, queries)
    order = np.argsort(-true, axis=1)
    seen = [row[:200].tolist() for row in order]
    found = made.top_k(queries, 20, method="clusters", candidates=1300, exclude=seen)
    np.testing.assert_array_equal(found.ids, order[:, 200:220])
    few = made.top_k(queries, 20, method="clusters", candidates=100, exclude=seen)
    assert (few.items_scored == 100).all()
    assert not any(np.isin(ids, left_out).any() for ids, left_out in zip(few.ids, seen, strict=True))
    # One list for all queries, and a few allowed items that lie in any cluster.
    allowed = np.arange(0, 1500, 60)
    found = made.top_k(queries, 25, method="clusters", candidates=25, allow=allowed)
    np.testing.assert_array_equal(np.sort(found.ids, axis=1), np.tile(allowed, (len(queries), 1)))


def test_a_gap_is_reached_by_more_candidates():
    given = grouped("logits")
    made, queries = clustered(given, np.arange(1500)), queries_of(given)
    first = made.top_k(queries, 5, method="clusters", candidates=64)
    wanted = float(first.gap.min()) / 4
    found = made.top_k(queries, 5, method="clusters", gap=wanted)
    assert (found.gap <= wanted).all() or (found.items_scored == 1500).all()
    assert found.items_scored.mean() > 64


def test_clusters_are_formed_anew_once_changes_are_more_than_a_quarter_of_the_items():
    given = grouped(n=1600)
    made = build(given, np.arange(800), ids=np.arange(800), clusters=20)
    first = clusters_of(made)
    made.add(np.arange(800, 1050), ids=np.arange(800, 1050))
    assert clusters_of(made).centres is first.centres
    assert clusters_of(made).changed == 250
    made.remove(np.arange(50))  # 300 changes for 1000 items
    again = clusters_of(made)
    assert (again.changed, again.fitted) == (0, 1000)
    assert len(again) == round(20 * np.sqrt(1000 / 800))
    assert again.problem() is None
    made.remove(np.arange(50, 1049))
    assert len(made) == len(clusters_of(made)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_items_that_are_added_or_removed_or_saved_are_found(kind, tmp_path):
    given = grouped(kind, 900)
    made, queries = clustered(given, np.arange(600), ids=np.arange(600)), queries_of(given)
    made.add(np.arange(600, 900), ids=np.arange(600, 900))
    made.remove(np.arange(0, 300))
    left = np.arange(300, 900)
    order = left[np.argsort(-truth(given, queries)[:, left], axis=1)]
    found = made.top_k(queries, 30, method="clusters", candidates=600)
    np.testing.assert_array_equal(found.ids, order[:, :30])
    clusters = clusters_of(made)
    assert clusters.problem() is None
    assert clusters.feature_error(given.components[left]) < 1e-6
    made.save(tmp_path / "saved")
    opened = load(tmp_path / "saved")
    for candidates in (50, 600):
        options = {"method": "clusters", "candidates": candidates}
        assert_same(made.top_k(queries, 30, **options), opened.top_k(queries, 30, **options))


def test_clusters_survive_the_removal_of_nearly_all_items():
    given = grouped(n=400)
    made, queries = build(given, np.arange(400)), queries_of(given)
    made.remove(np.arange(1, 400))
    assert (made.top_k(queries, 1, method="clusters").ids == 0).all()
    made.add(np.arange(1, 5))
    assert sorted(made.top_k(queries, 5, method="clusters").ids[0].tolist()) == [0, 400, 401, 402, 403]


def test_the_number_of_clusters_is_the_callers(tmp_path):
    given = grouped(n=300)
    queries = queries_of(given)
    assert len(clusters_of(build(given, np.arange(300), clusters=7))) == 7
    assert build(given, np.arange(300), clusters=300).top_k(queries, 5, method="clusters").ids.shape == (6, 5)
    without = build(given, np.arange(300), clusters=0)
    without.save(tmp_path / "none")
    for index in (without, load(tmp_path / "none")):
        assert clusters_of(index) is None
        with pytest.raises(InputError, match="built without clusters; build it again"):
            index.top_k(queries, 5, method="clusters")
    assert clusters_of(build(given, np.arange(300))) is not None
    assert clusters_of(build(grouped("largest", 300), np.arange(300))) is None
    for wrong, words in ((-1, "of at least 0"), (301, "there are 300 items"), (2.0, "one integer"), (True, "integer")):
        with pytest.raises(InputError, match=words):
            build(given, np.arange(300), clusters=wrong)


def test_one_pair_of_components_needs_no_clusters():
    given = similarity("logits", 100, parts=(1, 1))
    made, queries = build(given, np.arange(100)), queries_of(given)
    assert clusters_of(made) is None
    np.testing.assert_array_equal(
        made.top_k(queries, 5, method="clusters").ids, made.top_k(queries, 5, method="brute-force").ids
    )


def test_items_that_are_all_the_same_have_clusters_too():
    rng = np.random.default_rng(0)
    one = unit(rng.standard_normal((1, 2, 4)))
    known = similarity("logits", 5, parts=(3, 2), d=4).known
    given = Given(known, np.repeat(one, 64, axis=0))
    found = build(given, np.arange(64)).top_k(queries_of(given), 10, method="clusters", candidates=12)
    assert (found.items_scored == 12).all()


def test_the_same_clusters_come_from_any_number_of_threads(monkeypatch):
    given = grouped(n=3000)
    several = ItemClusters.fit(given.components, given.gates, 50)
    monkeypatch.setattr("softindex.mol.clusters.check_threads", lambda threads: 1)
    alone = ItemClusters.fit(given.components, given.gates, 50)
    for name, array in flatten(several).items():
        np.testing.assert_array_equal(array, flatten(alone)[name], err_msg=name)


LIES = {
    "offsets that decrease": ("offsets", lambda values: values[::-1].copy()),
    "offsets whose differences overflow": ("offsets", lambda values: np.r_[0, 2**63 - 1, -2, values[3:]]),
    "offsets that end early": ("offsets", lambda values: np.minimum(values, values[-1] - 1)),
    "an item in two clusters": ("order", lambda values: np.where(values == 3, 4, values)),
    "an item that does not exist": ("order", lambda values: np.where(values == 3, 10**6, values)),
    "items of other places": ("order", lambda values: values[::-1].copy()),
    "other features": ("features", lambda values: 1.01 * values),
    "no directions": ("basis", lambda values: values[:0]),
    "features that are not numbers": ("features", lambda values: values * np.nan),
    "gates of other clusters": ("gates", lambda values: values[:-1]),
}


@pytest.mark.parametrize("name", LIES)
def test_damaged_clusters_are_refused(name, tmp_path):
    build(grouped(n=100), np.arange(100)).save(tmp_path / "kept")
    stored = load_stored(tmp_path / "kept")
    arrays = {key: np.array(array) for key, array in stored.arrays.items()}
    what, change = LIES[name]
    arrays[f"clusters.{what}"] = change(arrays[f"clusters.{what}"]).astype(arrays[f"clusters.{what}"].dtype)
    if what == "basis":
        arrays["clusters.features"], arrays["clusters.spreads"] = (
            arrays[f"clusters.{part}"][:, :0].copy() for part in ("features", "spreads")
        )
    save_stored(tmp_path / "lies", Stored(KIND, stored.parameters, arrays))
    with pytest.raises(CorruptIndexError):
        load(tmp_path / "lies")


@pytest.mark.parametrize("parts", [2, 40])
def test_directions_hold_most_of_what_items_differ_in(parts):
    """Nearly as much as the principal directions, however many numbers an item has."""
    rng = np.random.default_rng(1)
    length = parts * 16
    scales = np.linspace(1, 0.05, length) ** 2
    components = (scales * rng.standard_normal((3000, length))).astype(np.float32).reshape(3000, parts, 16)
    clusters = ItemClusters.fit(components, None, 1)
    differences = (components - components.mean(axis=0)).reshape(3000, -1)
    variances = np.linalg.svd(differences, compute_uv=False) ** 2
    assert np.square(clusters.features).sum() >= 0.95 * variances[: len(clusters.basis)].sum()


def test_what_is_left_after_larger_items_went_can_be_loaded(tmp_path):
    given = similarity("logits", 1000, parts=(4, 3), d=16)
    given.components[200:] = 0
    made = build(given, np.arange(1000))
    made.remove(np.arange(200))
    made.save(tmp_path / "zeros")
    assert len(load(tmp_path / "zeros")) == 800


def test_new_items_join_clusters_that_have_a_centre():
    given = grouped("logits", 900)
    given.components[:500] = given.components[np.arange(500) % 10]
    clusters = ItemClusters.fit(given.components[:500], None, 40)
    empty = np.flatnonzero(np.diff(clusters.offsets) == 0)
    assert len(empty) >= 20
    joined = clusters.join(given.components[500:], None)
    assert (np.diff(joined.offsets)[empty] == 0).all()
    assert joined.problem() is None
    assert joined.feature_error(given.components) < 1e-6


@pytest.mark.parametrize("scale", [1e-42, 1e-39, 1e-30, 1e5])
def test_gates_of_any_size_are_clustered(scale):
    given = grouped(n=600)
    given.gates = (scale * given.gates).astype(np.float32)
    made = build(given, np.arange(500), clusters=20)
    made.add(np.arange(500, 600))
    assert clusters_of(made).problem() is None


def test_items_that_differ_in_their_gates_alone_are_clustered_by_them():
    given = grouped(n=600)
    given.components[:] = given.components[0]
    clusters = clusters_of(build(given, np.arange(600), clusters=20))
    within = given.gates[clusters.order] - np.repeat(clusters.gates, np.diff(clusters.offsets), axis=0)
    assert within.std() < 0.5 * given.gates.std()


def test_long_and_short_components_are_expanded_as_well():
    """Components of a similarity need not have length one."""
    rng = np.random.default_rng(3)
    given = grouped("logits", 500)
    known = type(given.known)(4, 3, 6, 1.0, False, gate(rng, 12), None, False)
    for scale in (1e-6, 1.0, 1e4):
        some = Given(known, (scale * given.components * rng.pareto(2, (500, 1, 1))).astype(np.float32))
        made = build(some, np.arange(500))
        queries = queries_of(some)
        np.testing.assert_array_equal(
            made.top_k(queries, 9, method="clusters", candidates=500).ids,
            made.top_k(queries, 9, method="brute-force").ids,
        )
