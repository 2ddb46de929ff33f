"""A tree's leaves are the clusters, its laws keep the contract, and a damaged tree is refused."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from inside import look_inside
from softindex.kernels import Request
from softindex.laws import LAWS, TREE_METHODS
from softindex.partition import LEAF_ITEMS, grow
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored
from softindex.testing import LawContract, kl_divergence


class TestHierarchical(LawContract):
    method = "hierarchical"
    build_options: ClassVar = {"tree": True}
    exact_for_single_items = False
    counts_weights = False


class TestSizeCorrected(LawContract):
    method = "s-hierarchical"
    build_options: ClassVar = {"tree": True}
    exact_for_single_items = False


class TestDispersionCorrected(LawContract):
    method = "sd-hierarchical"
    build_options: ClassVar = {"tree": True}
    exact_for_single_items = False


class TestFullDispersion(LawContract):
    method = "sd-hierarchical"
    build_options: ClassVar = {"tree": True, "dispersion": "full"}
    exact_for_single_items = False


class TestFlatLawOnATree(LawContract):
    method = "sd-2ls"
    build_options: ClassVar = {"tree": True}


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def sizes_of(parts):
    return np.bincount(parts.assignment, minlength=parts.clusters)


def check_branches(parts, branches):
    """Depth first, parents first, each node and each cluster once, and a node's span is that of its clusters."""
    offsets = np.concatenate([[0], np.cumsum(sizes_of(parts))])
    spans, waiting, nodes, clusters = list(zip(branches.begins, branches.ends, strict=True)), [], 0, 0
    waiting.append((0 if parts.clusters > 1 else -1, (0, len(parts.assignment))))
    while waiting:
        node, (begin, end) = waiting.pop()
        if node < 0:
            assert -1 - node == clusters
            assert (begin, end) == (offsets[clusters], offsets[clusters + 1])
            clusters += 1
            continue
        assert node == nodes
        nodes += 1
        (left_begin, left_end), (right_begin, right_end) = spans[2 * node : 2 * node + 2]
        assert begin == left_begin < left_end == right_begin < right_end == end
        left, right = branches.children[node]
        waiting += [(right, spans[2 * node + 1]), (left, spans[2 * node])]
    assert (nodes, clusters) == (parts.clusters - 1, parts.clusters)


def test_no_leaf_holds_more_items_than_the_limit():
    parts, branches = grow(normal(20_000, 8), None, seed=0, threads=2)
    assert sizes_of(parts).max() <= LEAF_ITEMS
    assert sizes_of(parts).min() > 0
    check_branches(parts, branches)


def test_few_items_are_one_leaf():
    for n in (1, 2, LEAF_ITEMS):
        parts, branches = grow(normal(n, 3), None, seed=0, threads=1)
        assert parts.clusters == 1
        assert branches.children.shape == (0, 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_as_many_leaves_as_asked_for_even_of_equal_items(n, d, levels, seed):
    random = np.random.default_rng(seed)
    vectors = random.integers(0, levels, (n, d)).astype(np.float32)
    clusters = int(random.integers(1, n + 1))
    parts, branches = grow(vectors, clusters, seed=seed, threads=1)
    assert parts.clusters == clusters
    assert sizes_of(parts).min() > 0
    check_branches(parts, branches)


def test_the_largest_leaf_is_cut_first():
    parts, _ = grow(np.ones((64, 2), np.float32), 16, seed=0, threads=1)
    assert sizes_of(parts).tolist() == [4] * 16


def test_identical_items_are_cut_in_half():
    parts, branches = grow(np.full((5000, 3), 0.1, np.float32), None, seed=0, threads=2)
    assert sizes_of(parts).tolist() == [625] * 8
    check_branches(parts, branches)


def test_separated_groups_become_subtrees():
    groups = np.repeat(np.arange(4), 500)
    vectors = (100 * np.eye(4)[groups] + normal(2000, 4)).astype(np.float32)
    parts, _ = grow(vectors, 4, seed=0, threads=1)
    assert len({(group, cluster) for group, cluster in zip(groups, parts.assignment, strict=True)}) == 4


def test_the_number_of_threads_and_the_kind_of_array_change_nothing(tmp_path, monkeypatch):
    # Large nodes are shared out by blocks, small ones whole: make both happen.
    monkeypatch.setattr("softindex.partition.tree.SHARED_ITEMS", 4096)
    monkeypatch.setattr("softindex.partition.tree.TRAINING_ITEMS", 1000)
    vectors = normal(12_000, 8)
    one, branches = grow(vectors, None, seed=5, threads=1)
    np.save(tmp_path / "vectors.npy", vectors)
    for source, threads in ((vectors, 3), (np.load(tmp_path / "vectors.npy", mmap_mode="r"), 2)):
        other, again = grow(source, None, seed=5, threads=threads)
        np.testing.assert_array_equal(one.assignment, other.assignment)
        np.testing.assert_array_equal(branches.children, again.children)
    assert not np.array_equal(one.assignment, grow(vectors, None, seed=6, threads=1)[0].assignment)


def test_more_leaves_than_items_and_no_leaf_are_refused():
    with pytest.raises(softindex.InputError, match="clusters is 11, but there are only 10 items; pass at most 10"):
        softindex.build(normal(10, 3), clusters=11, tree=True)
    with pytest.raises(softindex.InputError, match="tree is 'yes'; expected True or False"):
        softindex.build(normal(10, 3), tree="yes")


def test_progress_reaches_its_total():
    for clusters in (None, 30):
        calls = []
        grow(normal(9000, 4), clusters, seed=0, threads=2, report=lambda *call, calls=calls: calls.append(call))
        assert {stage for stage, _, _ in calls} == {"splitting"}
        assert calls[-1][1] == calls[-1][2]
        assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_a_node_is_measured_like_a_cluster_of_its_items():
    bias = np.random.default_rng(1).standard_normal(700).astype(np.float32)
    index = softindex.build(normal(700, 5), clusters=2, tree=True, log_bias=bias, dispersion="full")
    moments, tree = look_inside(index).moments, look_inside(index).tree
    np.testing.assert_array_equal(tree.means, moments.means)
    np.testing.assert_array_equal(tree.log_sizes, moments.log_sizes)
    np.testing.assert_array_equal(tree.dispersion.forms, moments.dispersion.forms)


@pytest.mark.parametrize("dispersion", ["full", 3])
def test_two_leaves_give_the_two_level_laws(dispersion):
    index = softindex.build(normal(900, 6), clusters=2, tree=True, dispersion=dispersion)
    for query in normal(5, 6, seed=1):
        for flat, walked in zip(("2ls", "s-2ls", "sd-2ls"), TREE_METHODS, strict=True):
            first = index.log_prob(query, index.ids, temperature=0.4, method=flat, probes=0)
            np.testing.assert_allclose(
                index.log_prob(query, index.ids, temperature=0.4, method=walked), first, atol=1e-5
            )


def unbalanced():
    rng = np.random.default_rng(2)
    group = rng.choice(6, size=12_000, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    scales = np.array([0.5, 0.1, 0.3, 0.2, 0.6, 0.1])
    centres = rng.standard_normal((6, 8))
    return (centres[group] + scales[group, None] * rng.standard_normal((12_000, 8))).astype(np.float32)


def test_each_correction_brings_the_law_nearer_to_the_softmax():
    index = softindex.build(unbalanced(), tree=True, dispersion="full")
    queries = normal(20, 8, seed=3)
    truth = index.log_prob(queries, index.ids, temperature=1.0, method="exact")
    plain, sized, both = (
        np.mean(
            [
                kl_divergence(law, true)
                for law, true in zip(
                    index.log_prob(queries, index.ids, temperature=1.0, method=method), truth, strict=True
                )
            ]
        )
        for method in TREE_METHODS
    )
    assert both < sized / 2 < plain / 4


def test_the_masses_of_all_leaves_are_the_shares_a_walk_finds():
    """The engine fills the masses of all clusters for whatever is built on them; they sum to one."""
    index, masses = softindex.build(normal(300, 6), clusters=40, tree=True), np.empty((7, 40))
    for method in TREE_METHODS:
        request = Request(normal(7, 6), LAWS[method], 0.3)
        index._engine.masses(request, masses, np.empty(7), np.empty(7, np.int64))
        np.testing.assert_allclose(np.logaddexp.reduce(masses, axis=1), 0.0, atol=1e-6)


@pytest.mark.parametrize("method", TREE_METHODS)
def test_an_index_without_a_tree_says_how_to_get_one(method):
    index = softindex.build(normal(50, 4))
    for call in (index.sample, lambda *given, **named: index.log_prob(*given, [0], **named), index.log_partition):
        with pytest.raises(softindex.MethodError, match="build again with tree=True"):
            call(np.ones(4, np.float32), temperature=1.0, method=method)


@pytest.mark.parametrize("method", TREE_METHODS)
def test_a_tree_does_not_estimate_log_z_and_says_what_does(method):
    index = softindex.build(normal(50, 4), tree=True)
    with pytest.raises(
        softindex.MethodError, match="does not estimate log Z; use one of exact, certified, 2ls, s-2ls, sd-2ls"
    ):
        index.log_partition(np.ones(4, np.float32), temperature=1.0, method=method)


def test_a_tree_without_dispersion_serves_the_other_laws():
    index = softindex.build(normal(3000, 4), tree=True, dispersion="none")
    for method in ("hierarchical", "s-hierarchical"):
        assert np.isfinite(index.sample(np.ones(4, np.float32), 5, temperature=1.0, method=method).log_prob).all()
    with pytest.raises(softindex.MethodError, match="use s-hierarchical, or build again"):
        index.sample(np.ones(4, np.float32), temperature=1.0, method="sd-hierarchical")


def test_a_draw_states_no_error_and_scores_one_leaf():
    index = softindex.build(normal(8000, 6), tree=True)
    for method in TREE_METHODS:
        draws = index.sample(normal(9, 6), 1, temperature=0.5, method=method)
        assert np.isnan(draws.error).all()
        assert (draws.items_scored <= LEAF_ITEMS).all()


def test_a_chain_as_deep_as_its_items_is_walked_and_not_recursed():
    # Each item is as far from all before it as these are wide: 2-means peels them off one at a time.
    vectors = (2.0 ** np.arange(60, dtype=np.float64)).astype(np.float32)[:, None] * 1e-9
    index = softindex.build(vectors, clusters=60, tree=True)
    for method in TREE_METHODS:
        law = index.log_prob(np.ones(1, np.float32), index.ids, temperature=1.0, method=method)
        assert np.exp(law).sum() == pytest.approx(1, abs=1e-4)


def test_only_the_nodes_on_the_paths_walked_are_evaluated():
    # Two far groups: at a low temperature every walk goes to the side of the query, whatever the other side holds.
    # (Sixteen dimensions, as shorter rows are read together with the beginning of the next, times zero.)
    vectors = normal(400, 16)
    vectors[:200, 0] += 100
    index = softindex.build(vectors, clusters=16, tree=True)
    tree, query = look_inside(index).tree, np.eye(16, dtype=np.float32)[0]
    near = int(np.argmax(tree.means[:2, 0]))
    near_ids = np.flatnonzero(vectors[:, 0] > 50)
    law = {method: index.log_prob(query, near_ids, temperature=0.1, method=method) for method in TREE_METHODS}
    second = max(tree.children[0])  # the inner nodes of the right side are this one and all after it
    inner = np.arange(len(tree.children))
    other = inner[1:second] if near == 1 else inner[second:]
    tree.means[np.concatenate([2 * other, 2 * other + 1])] = np.nan
    for method in TREE_METHODS:
        draws = index.sample(query, 50, temperature=0.1, method=method, seed=0)
        assert set(draws.ids) <= set(near_ids)
        np.testing.assert_array_equal(index.log_prob(query, near_ids, temperature=0.1, method=method), law[method])
        with pytest.raises(softindex.CorruptIndexError):
            index.log_prob(query, range(400), temperature=0.1, method=method)


def small(**settings):
    return softindex.build(normal(80, 6), **{"clusters": 9, "tree": True, **settings})


@pytest.mark.parametrize(
    "settings",
    [{}, {"dispersion": "none"}, {"dispersion": "full"}, {"dispersion": 2}, {"clusters": 1}, {"clusters": 80}],
)
def test_a_tree_is_saved_and_loaded(settings, tmp_path):
    index = small(**settings)
    assert index.parameters["tree"] is True
    index.save(tmp_path / "index")
    loaded = softindex.load(tmp_path / "index")
    assert loaded.parameters == index.parameters
    methods = [name for name, law in LAWS.items() if not (law.dispersion and settings.get("dispersion") == "none")]
    for method in methods:
        before, after = (
            each.log_prob(normal(3, 6), range(80), temperature=0.3, method=method) for each in (index, loaded)
        )
        np.testing.assert_array_equal(before, after)
    assert softindex.build(normal(20, 3)).parameters["tree"] is False


def changed(stored, *, drop=(), parameters=None, **arrays):
    kept = {name: array for name, array in stored.arrays.items() if name not in drop}
    return Stored(stored.kind, {**stored.parameters, **(parameters or {})}, {**kept, **arrays})


def with_child(stored, node, side, value):
    children = stored.arrays["tree_children"].copy()
    children[node, side] = value
    return changed(stored, tree_children=children)


def flipped(stored):
    return changed(stored, tree_children=stored.arrays["tree_children"][:, ::-1].copy())


WRONG = {
    "no children": lambda s: changed(s, drop=["tree_children"]),
    "no means": lambda s: changed(s, drop=["tree_means"]),
    "no sizes": lambda s: changed(s, drop=["tree_log_sizes"]),
    "no forms": lambda s: changed(s, drop=["tree_forms"]),
    "no scales": lambda s: changed(s, drop=["tree_scales"]),
    "a circle": lambda s: with_child(s, 0, 0, 0),
    "a longer circle": lambda s: with_child(s, 7, 1, 0),
    "a node outside": lambda s: with_child(s, 0, 0, 10**9),
    "a cluster outside": lambda s: with_child(s, 7, 1, -(10**9)),
    "the smallest number": lambda s: with_child(s, 0, 1, -(2**63)),
    "a cluster twice": lambda s: with_child(s, 7, 1, -1),
    "all leaves": lambda s: changed(s, tree_children=np.full((8, 2), -1)),
    "all inner": lambda s: changed(s, tree_children=np.arange(16).reshape(8, 2)),
    "mirrored": flipped,
    "too short": lambda s: changed(s, tree_children=s.arrays["tree_children"][:-1].copy()),
    "too wide": lambda s: changed(s, tree_children=np.zeros((8, 3), np.int64)),
    "flat": lambda s: changed(s, tree_children=s.arrays["tree_children"].ravel()),
    "narrow integers": lambda s: changed(s, tree_children=s.arrays["tree_children"].astype(np.int32)),
    "short means": lambda s: changed(s, tree_means=s.arrays["tree_means"][:-1].copy()),
    "wide means": lambda s: changed(s, tree_means=s.arrays["tree_means"].astype(np.float64)),
    "short sizes": lambda s: changed(s, tree_log_sizes=s.arrays["tree_log_sizes"][:-1].copy()),
    "short forms": lambda s: changed(s, tree_forms=s.arrays["tree_forms"][:-1].copy()),
    "wide forms": lambda s: changed(s, tree_forms=s.arrays["tree_forms"].astype(np.int32)),
    "short scales": lambda s: changed(s, tree_scales=s.arrays["tree_scales"][:-1].copy()),
    "some tree": lambda s: changed(s, parameters={"tree": "some"}),
}


@pytest.mark.parametrize("dispersion", ["full", 2])
@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_tree_is_refused(name, dispersion, tmp_path):
    small(dispersion=dispersion).save(tmp_path / "index")
    save_stored(tmp_path / "wrong", WRONG[name](load_stored(tmp_path / "index")))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_a_tree_where_none_was_built_is_refused(tmp_path):
    small(tree=False).save(tmp_path / "index")
    save_stored(tmp_path / "wrong", changed(load_stored(tmp_path / "index"), parameters={"tree": True}))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_means_that_are_no_numbers_are_refused_at_load(tmp_path):
    small().save(tmp_path / "index")
    stored = load_stored(tmp_path / "index")
    save_stored(tmp_path / "wrong", changed(stored, tree_means=np.full_like(stored.arrays["tree_means"], np.nan)))
    with pytest.raises(softindex.CorruptIndexError, match="tree_means holds values"):
        softindex.load(tmp_path / "wrong")


def test_no_leaf_holds_more_items_than_the_caller_allows():
    vectors = normal(1500, 4)
    for leaf_items in (1, 7, 300):
        index = softindex.build(vectors, tree=True, leaf_items=leaf_items)
        assert index.sizes.min() >= 1
        assert index.sizes.max() <= leaf_items


def test_smaller_leaves_split_the_leaves_of_a_larger_tree():
    vectors = normal(2000, 4)
    coarse = grow(vectors, None, leaf_items=500, seed=3, threads=1)[0]
    fine = grow(vectors, None, leaf_items=100, seed=3, threads=1)[0]
    for cluster in range(fine.clusters):
        assert len(np.unique(coarse.assignment[fine.assignment == cluster])) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"leaf_items": 5}, "pass tree=True"),
        ({"leaf_items": 5, "tree": True, "clusters": 3}, "pass one of them"),
        ({"leaf_items": 0, "tree": True}, "leaf_items"),
        ({"leaf_items": 2.5, "tree": True}, "leaf_items"),
    ],
)
def test_a_leaf_size_that_cannot_be_used_is_refused(options, words):
    with pytest.raises(softindex.InputError, match=words):
        softindex.build(normal(20, 3), **options)
