"""Every law keeps the contract, and each is the law its formula says."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from inside import look_inside
from softindex.kernels import reference
from softindex.laws import FLAT_METHODS, LAWS
from softindex.testing import LawContract, catalogues, kl_divergence, queries, temperatures


class TestExact(LawContract):
    method = "exact"
    exact = True


class TestCertified(LawContract):
    method = "certified"
    exact = True


class TestCertifiedByCodes(LawContract):
    method = "certified"
    build_options: ClassVar = {"codes": True}
    exact = True


class TestCertifiedByRadii(LawContract):
    method = "certified"
    build_options: ClassVar = {"dispersion": "none"}
    exact = True


class TestTwoLevel(LawContract):
    method = "2ls"
    options: ClassVar = {"probes": 0}
    counts_weights = False


class TestSizeCorrected(LawContract):
    method = "s-2ls"
    options: ClassVar = {"probes": 0}


class TestDispersionCorrected(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"probes": 0}


class TestDispersionOfRankTwo(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"probes": 0}
    build_options: ClassVar = {"dispersion": 2}


class TestFullDispersion(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"probes": 0}
    build_options: ClassVar = {"dispersion": "full"}


class TestTheDefault(LawContract):
    method = "sd-2ls"


class TestATightTolerance(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"tolerance": 1e-6}


class TestOneProbe(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"probes": 1}


class TestTwoLevelProbed(LawContract):
    method = "2ls"
    counts_weights = False


class TestSizeCorrectedProbed(LawContract):
    method = "s-2ls"
    build_options: ClassVar = {"dispersion": "none"}


class TestTheDefaultInEightBits(LawContract):
    method = "sd-2ls"
    build_options: ClassVar = {"storage": "int8"}


class TestPublishedInSixteenBits(LawContract):
    method = "sd-2ls"
    options: ClassVar = {"probes": 0}
    build_options: ClassVar = {"storage": "int16"}


class TestCertifiedInEightBits(LawContract):
    method = "certified"
    build_options: ClassVar = {"storage": "int8"}
    exact = True


class TestTopK(LawContract):
    """Of catalogues with fewer items than k: the softmax itself."""

    method = "top-k"
    exact = True


def reference_law(index, query, temperature, method):
    """Log-probability of every item in cluster order, from the definition."""
    contents, law = look_inside(index), LAWS[method]
    true = reference.cluster_masses(contents.vectors, contents.offsets, query, temperature, contents.log_bias)
    masses = true
    if law.kind == "tree":
        offset = reference.log_size_terms(contents.tree, law.size)
        masses = reference.leaf_shares(contents.tree, query, temperature, offset, law.dispersion)
    elif law.kind not in ("exhaustive", "certified"):
        offset = reference.log_size_terms(contents.moments, law.size)
        masses = reference.estimated_masses(contents.moments, query, temperature, offset, law.dispersion)
    logits = reference.scan(contents.vectors, query) / temperature
    if contents.log_bias is not None:
        logits = logits + contents.log_bias
    return reference.law_log_prob(masses, true, np.split(logits, contents.offsets[1:-1]))


def depth_of(index):
    """The largest number of nodes on the way to a leaf, the leaf included."""
    children = look_inside(index).tree.children
    depths = np.ones(len(children) + 1, np.int64)
    for node, pair in enumerate(children):
        for child in pair[pair >= 0]:
            depths[child] = depths[node] + 1
    return depths.max() + 1


@pytest.mark.parametrize("dispersion", ["full", 1, 3])
@pytest.mark.parametrize("method", LAWS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_law_is_its_definition(method, dispersion, data):
    catalogue = data.draw(catalogues())
    tree = LAWS[method].kind == "tree"
    index = softindex.build(
        catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias, dispersion=dispersion, tree=tree
    )
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    law = index.log_prob(query, index.ids, temperature=temperature, method=method, probes=0)
    truth = reference_law(index, query, temperature, method)
    # Plain float32 rounds every dot product in proportion to its largest terms; a dispersion squares them.
    scale = np.abs(catalogue.vectors).max() * np.abs(query).max() * index.dim / temperature
    slack = 1e-4 + 2e-6 * scale + 1e-6 * np.abs(truth) + 1e-5 * scale**2 * LAWS[method].dispersion
    # Every step down a tree rounds anew.
    assert (np.abs(law - truth) <= slack * (depth_of(index) if tree else 1)).all()


@pytest.mark.parametrize("method", ["s-2ls", "sd-2ls"])
def test_an_item_of_log_bias_log_two_counts_as_two_items(method):
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((60, 4)) * 0.1).astype(np.float32)
    vectors[:20, 0] += 5
    doubled = np.concatenate([vectors, vectors[:7]])
    bias = np.zeros(60, np.float32)
    bias[:7] = np.log(2)
    query = rng.standard_normal(4).astype(np.float32)
    weighted = softindex.build(vectors, clusters=2, log_bias=bias, dispersion="full")
    repeated = softindex.build(doubled, clusters=2, dispersion="full")
    first = weighted.log_prob(query, range(60), temperature=0.3, method=method, probes=0)
    second = repeated.log_prob(query, range(60), temperature=0.3, method=method, probes=0)
    expected = second + np.where(np.arange(60) < 7, np.log(2), 0)
    np.testing.assert_allclose(first, expected, atol=1e-5)


def test_the_ratio_to_the_softmax_is_one_number_per_cluster():
    rng = np.random.default_rng(1)
    index = softindex.build(rng.standard_normal((500, 8)).astype(np.float32), clusters=20)
    query = rng.standard_normal(8).astype(np.float32)
    for method in ("2ls", "s-2ls", "sd-2ls"):
        law = index.log_prob(query, index.ids, temperature=0.7, method=method, probes=0)
        truth = index.log_prob(query, index.ids, temperature=0.7, method="exact")
        for ratio in np.split(law - truth, np.cumsum(index.sizes)[:-1]):
            assert np.ptp(ratio) < 1e-5


def test_gaussian_clusters_of_many_items_make_sd_2ls_nearly_exact():
    rng = np.random.default_rng(2)
    group = rng.choice(2, size=40_000, p=[0.3, 0.7])
    scales = np.array([0.2, 0.6])
    vectors = (5.0 * np.eye(6)[group] + scales[group, None] * rng.standard_normal((40_000, 6))).astype(np.float32)
    index = softindex.build(vectors, clusters=2, dispersion="full")
    assert sorted(index.sizes) == sorted(np.bincount(group))
    kl = {}
    for method in ("2ls", "s-2ls", "sd-2ls"):
        values = []
        for query in rng.standard_normal((10, 6)).astype(np.float32):
            law = index.log_prob(query, index.ids, temperature=1.0, method=method, probes=0)
            values.append(kl_divergence(law, index.log_prob(query, index.ids, temperature=1.0, method="exact")))
        kl[method] = np.mean(values)
    assert kl["sd-2ls"] < 1e-3
    assert kl["sd-2ls"] < kl["s-2ls"] / 10 < kl["2ls"] / 10


def test_an_empty_cluster_is_never_drawn():
    vectors = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    index = softindex.build(vectors, clusters=8)
    assert (index.sizes == 0).any()
    for method in FLAT_METHODS:
        draws = index.sample(np.ones(3, np.float32), 300, temperature=1.0, method=method, probes=0)
        assert np.isfinite(draws.log_prob).all()
        law = index.log_prob(np.ones(3, np.float32), range(30), temperature=1.0, method=method, probes=0)
        assert np.exp(law).sum() == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bounds_of_the_exact_log_partition_hold(data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias)
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    logits = catalogue.vectors.astype(np.longdouble) @ query.astype(np.longdouble) / temperature
    if catalogue.log_bias is not None:
        logits = logits + catalogue.log_bias
    truth = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    estimate = index.log_partition(query, temperature=temperature, method="exact")
    assert estimate.low <= truth <= estimate.high
    assert estimate.low <= estimate.value <= estimate.high


def test_two_level_laws_estimate_log_z_and_prove_nothing():
    rng = np.random.default_rng(4)
    index = softindex.build(rng.standard_normal((2000, 8)).astype(np.float32) * 0.3)
    batch = rng.standard_normal((3, 8)).astype(np.float32)
    truth = index.log_partition(batch, temperature=1.0, method="exact").value
    for method, tolerance in (("2ls", 0.5), ("s-2ls", 0.3), ("sd-2ls", 0.05)):
        estimate = index.log_partition(batch, temperature=1.0, method=method, probes=0)
        assert estimate.low is None
        assert estimate.high is None
        np.testing.assert_allclose(estimate.value, truth, atol=tolerance)
