"""The promises every law keeps, as one test class to inherit from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import softindex
from softindex.kernels.reference import conditional_law, sequential_law
from softindex.laws import LAWS, Method
from softindex.records import Doubles, Floats
from softindex.testing.statistics import chi_square_score
from softindex.testing.strategies import Catalogue, catalogues, queries, temperatures

__all__ = ["LawContract"]

CONDITIONED = 64
"""A cluster of up to this many items is scanned when it loses some.  A larger one, if its mass is an estimate, may lose
the weights of these items instead of their share of the mass."""

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def _true_log_prob(vectors: Floats, query: Floats, temperature: float, log_bias: Floats | None) -> Doubles:
    logits = vectors.astype(np.float64) @ query.astype(np.float64) / temperature
    if log_bias is not None:
        logits = logits + log_bias
    logits = logits - logits.max()
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def _rounding(vectors: Floats, query: Floats, temperature: float) -> float:
    """What a plain float32 computation of the logits may be off by."""
    scale = float(np.abs(vectors.astype(np.float64)).sum(axis=1).max() * np.abs(query).max())
    return 4e-5 + 16 * 2.0**-24 * scale / temperature


class LawContract:
    """Inherit, set `method` (and `options`, `build_options`), and every promise becomes a test of that law."""

    method: ClassVar[Method]
    options: ClassVar[dict[str, Any]] = {}
    """Further keywords of sample and log_prob."""
    build_options: ClassVar[dict[str, Any]] = {}
    exact: ClassVar[bool] = False
    """The law is the softmax itself, whatever the partition."""
    exact_for_single_items: ClassVar[bool] = True
    """With one item per cluster the law is the softmax (not so where inner nodes of a tree are estimated)."""
    counts_weights: ClassVar[bool] = True
    """Log biases enter the mass of a cluster (not so for 2ls, which ignores sizes)."""

    @property
    def adaptive(self) -> bool:
        """Whether probes are chosen for what is left: exclusions and slates then have laws of their own."""
        law = LAWS.get(self.method)
        return law is not None and law.kind == "estimated" and self.options.get("probes") is None

    def build(self, catalogue: Catalogue, **changes: Any) -> softindex.Index:
        """Build an index of the catalogue with the options of this contract."""
        options = {
            "clusters": catalogue.clusters,
            "log_bias": catalogue.log_bias,
            "seed": 1,
            **self.build_options,
        }
        return softindex.build(catalogue.vectors, **{**options, **changes})

    def law(self, index: softindex.Index, query: Floats, temperature: float) -> Doubles:
        """Log-probability (n,) of the items 0 .. n - 1."""
        return index.log_prob(query, np.arange(len(index)), temperature=temperature, method=self.method, **self.options)

    def draw(self, index: softindex.Index, batch: NDArray[Any], n: int, **changes: Any) -> softindex.Draws:
        """Sample with the method and options of this contract."""
        return index.sample(batch, n, **{"temperature": 0.5, "method": self.method, **self.options, **changes})

    @quick
    @given(st.data())
    def test_probabilities_sum_to_one(self, data: st.DataObject) -> None:
        catalogue = data.draw(catalogues())
        index = self.build(catalogue)
        temperature = data.draw(temperatures())
        for query in data.draw(queries(index.dim)):
            total = np.exp(self.law(index, query, temperature)).sum()
            assert total == pytest.approx(1.0, abs=2 * _rounding(catalogue.vectors, query, temperature))

    @quick
    @given(st.data())
    def test_log_prob_is_the_law_drawn_from(self, data: st.DataObject) -> None:
        index = self.build(data.draw(catalogues()))
        batch, temperature = data.draw(queries(index.dim)), data.draw(temperatures())
        draws = self.draw(index, batch, 9, temperature=temperature)
        again = index.log_prob(batch, draws.ids, temperature=temperature, method=self.method, **self.options)
        self._check_stated(draws, again)
        assert np.isfinite(draws.log_prob).all()
        assert (draws.log_prob <= 0).all()

    @quick
    @given(st.data())
    def test_one_cluster_is_the_exact_softmax(self, data: st.DataObject) -> None:
        catalogue = data.draw(catalogues())
        index = self.build(catalogue, clusters=1)
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        self._check_softmax(catalogue, index, query, temperature)

    @quick
    @given(st.data())
    def test_one_item_per_cluster_is_the_exact_softmax(self, data: st.DataObject) -> None:
        catalogue = data.draw(catalogues(biased=None if self.counts_weights else False))
        # Two clusters of one item are below one node, and no other: even a tree is exact then.
        most = len(catalogue.vectors) if self.exact_for_single_items else 2
        catalogue = catalogue.first(most)
        index = self.build(catalogue, clusters=len(catalogue.vectors))
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        self._check_softmax(catalogue, index, query, temperature)

    @quick
    @given(st.data())
    def test_it_is_the_exact_softmax_where_it_claims_so(self, data: st.DataObject) -> None:
        catalogue = data.draw(catalogues())
        index = self.build(catalogue)
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        if self.exact:
            self._check_softmax(catalogue, index, query, temperature)
            assert self.draw(index, query, 1, temperature=temperature).error == 0.0
            return
        error = self.draw(index, query, 1, temperature=temperature).error
        assert np.isnan(error) or 0.0 <= error <= 1.0
        if error == 0.0:
            # Zero is no estimate: every cluster was scanned.
            self._check_softmax(catalogue, index, query, temperature)

    def _check_stated(self, draws: softindex.Draws, log_prob: Doubles) -> None:
        """What draws tell of their log-probability is this, or is bracketed by proven bounds as this is."""
        if draws.low is None or draws.high is None:
            np.testing.assert_array_equal(draws.log_prob, log_prob)
            return
        for stated in (draws.log_prob, log_prob):
            assert ((draws.low <= stated) & (stated <= draws.high)).all()

    def _check_softmax(self, catalogue: Catalogue, index: softindex.Index, query: Floats, temperature: float) -> None:
        law = self.law(index, query, temperature)
        # An index that keeps fewer bits is about the vectors that it keeps.
        stored = index.vectors(np.arange(len(index)))
        if index.parameters["storage"] == "float32":
            np.testing.assert_array_equal(stored, catalogue.vectors)
        truth = _true_log_prob(stored, query, temperature, catalogue.log_bias)
        # Far below the top only the size of the logit counts: its rounding grows with it.
        slack = _rounding(catalogue.vectors, query, temperature) + 1e-6 * np.abs(truth)
        assert (np.abs(law - truth) <= slack).all()

    @quick
    @given(st.data())
    def test_a_constant_added_to_every_log_bias_changes_nothing(self, data: st.DataObject) -> None:
        catalogue = data.draw(catalogues(biased=True))
        assert catalogue.log_bias is not None
        query, temperature = (
            data.draw(queries(catalogue.vectors.shape[1], count=1))[0],
            data.draw(temperatures()),
        )
        plain = self.law(self.build(catalogue), query, temperature)
        shifted = self.law(self.build(catalogue, log_bias=catalogue.log_bias + np.float32(4.0)), query, temperature)
        np.testing.assert_allclose(plain, shifted, rtol=1e-5, atol=2e-4)

    @quick
    @given(st.data())
    def test_the_order_of_the_items_changes_nothing(self, data: st.DataObject) -> None:
        # Two far groups: k-means finds the same partition in whatever order the items come.
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        vectors = rng.standard_normal((40, 5)).astype(np.float32) * 0.1
        vectors[:13, 0] += 5.0
        order = rng.permutation(40)
        query = rng.standard_normal(5).astype(np.float32)
        plain = softindex.build(vectors, clusters=2, **self.build_options)
        permuted = softindex.build(vectors[order], clusters=2, **self.build_options)
        assert sorted(plain.sizes) == sorted(permuted.sizes) == [13, 27]
        first, second = self.law(plain, query, 0.3), self.law(permuted, query, 0.3)
        np.testing.assert_allclose(first[order], second, atol=1e-5)

    @quick
    @given(st.data())
    def test_the_same_seed_gives_the_same_draws_whatever_the_batch_order_and_threads(self, data: st.DataObject) -> None:
        index = self.build(data.draw(catalogues()))
        batch = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((37, index.dim))
        batch = batch.astype(np.float32)
        once = self.draw(index, batch, 3, seed=7, threads=1)
        threaded = self.draw(index, batch, 3, seed=7, threads=3)
        order = np.random.default_rng(0).permutation(37)
        shuffled = self.draw(index, batch[order], 3, seed=7)
        split = np.concatenate([self.draw(index, part, 3, seed=7).ids for part in np.split(batch, [1, 2, 20])])
        alone = np.stack([self.draw(index, query, 3, seed=7).ids for query in batch])
        np.testing.assert_array_equal(once.ids, threaded.ids)
        np.testing.assert_array_equal(once.log_prob, threaded.log_prob)
        np.testing.assert_array_equal(once.ids[order], shuffled.ids)
        np.testing.assert_array_equal(once.ids, split)
        np.testing.assert_array_equal(once.ids, alone)
        np.testing.assert_array_equal(self.draw(index, batch, 8, seed=7).ids[:, :3], once.ids)

    @quick
    @given(st.data())
    def test_exclusion_renormalises_the_law_of_the_others(self, data: st.DataObject) -> None:
        index = self.build(data.draw(catalogues()))
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        # Duplicates are fine; one item is always left.
        gone = np.array(data.draw(st.lists(st.integers(0, len(index) - 1), max_size=40)), np.int64)
        gone = gone[gone != data.draw(st.integers(0, len(index) - 1))]
        law = self.law(index, query, temperature)
        part = self._law_of(index, query, temperature, exclude=gone)
        self._check_conditional(index, part, law, gone)
        draws = self.draw(index, query, 20, temperature=temperature, exclude=gone)
        assert not np.isin(draws.ids, gone).any()
        self._check_stated(draws, part[draws.ids])

    @quick
    @given(st.data())
    def test_without_replacement_items_differ_and_each_step_is_the_law_of_what_is_left(
        self, data: st.DataObject
    ) -> None:
        index = self.build(data.draw(catalogues()))
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        n = data.draw(st.sampled_from((1, min(5, len(index)), len(index))))
        draws = self.draw(index, query, n, temperature=temperature, replace=False, seed=3)
        assert len(np.unique(draws.ids)) == n
        law = self.law(index, query, temperature)
        # The differences of very small probabilities are known to the digits that their logs have.
        slack = 1e-5 + 1e-15 * float(np.abs(law).max())
        steps = index.log_prob(
            query, draws.ids, temperature=temperature, method=self.method, replace=False, **self.options
        )
        np.testing.assert_allclose(draws.log_prob, steps, rtol=1e-6, atol=slack)
        for step in range(0 if self.adaptive else n):
            left = self._law_of(index, query, temperature, exclude=draws.ids[:step])
            assert draws.log_prob[step] == pytest.approx(left[draws.ids[step]], rel=1e-6, abs=slack)
        if index.sizes.max() <= CONDITIONED and not self.adaptive:
            np.testing.assert_allclose(draws.log_prob, sequential_law(law, draws.ids), rtol=1e-6, atol=slack)
        fewer = self.draw(index, query, (n + 1) // 2, temperature=temperature, replace=False, seed=3)
        np.testing.assert_array_equal(draws.ids[: len(fewer.ids)], fewer.ids)

    @quick
    @given(st.data())
    def test_a_nucleus_is_the_fewest_most_probable_items_that_reach_top_p(self, data: st.DataObject) -> None:
        index = self.build(data.draw(catalogues()))
        query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
        top_p = data.draw(st.sampled_from((1e-9, 0.3, 0.5, 0.9, 0.999)))
        law = self.law(index, query, temperature)
        part = self._law_of(index, query, temperature, top_p=top_p)
        held = np.isfinite(part)
        assert np.exp(part).sum() == pytest.approx(1.0, abs=1e-5)
        assert np.exp(law[held]).sum() >= top_p - 1e-5
        assert np.exp(law[held]).sum() - np.exp(law[held].min()) < top_p + 1e-5
        assert held.all() or law[held].min() >= law[~held].max() - 1e-6 * abs(law[~held].max())
        np.testing.assert_allclose(part[held], conditional_law(law, np.flatnonzero(~held))[held], rtol=1e-6, atol=1e-5)
        draws = self.draw(index, query, 20, temperature=temperature, top_p=top_p)
        np.testing.assert_array_equal(draws.log_prob, part[draws.ids])
        assert np.isfinite(draws.log_prob).all()

    def _check_conditional(self, index: softindex.Index, part: Doubles, law: Doubles, gone: NDArray[Any]) -> None:
        """`part` is the law without these items: exactly, or but for the masses of the clusters."""
        truth = conditional_law(law, gone)
        np.testing.assert_array_equal(np.isneginf(part), np.isneginf(truth))
        assert np.exp(part).sum() == pytest.approx(1.0, abs=1e-4)
        if index.sizes.max() <= CONDITIONED and not self.adaptive:
            np.testing.assert_allclose(part, truth, rtol=1e-6, atol=1e-5)
        for members in np.split(index.ids, np.cumsum(index.sizes)[:-1]):
            held = members[np.isfinite(truth[members])]
            change = part[held] - truth[held]
            # Log-probabilities are float32: two units in the last place of the largest one.
            rounding = 2.5e-7 * abs(truth[held]).max(initial=0)
            np.testing.assert_allclose(
                change, change[:1].repeat(len(held)), rtol=0, atol=2e-5 + rounding + 1e-6 * abs(change).max(initial=0)
            )

    def _law_of(self, index: softindex.Index, query: Floats, temperature: float, **part: Any) -> Doubles:
        every, options = np.arange(len(index)), {"method": self.method, **self.options, **part}
        return index.log_prob(query, every, temperature=temperature, **options)

    def test_a_saved_index_gives_identical_draws_for_the_same_seed(self) -> None:
        index = self.build(self._catalogue())
        batch = np.random.default_rng(3).standard_normal((11, index.dim)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            index.save(Path(folder) / "saved")
            for mmap in (True, False):
                loaded = softindex.load(Path(folder) / "saved", mmap=mmap)
                assert isinstance(loaded, softindex.Index)
                before, after = self.draw(index, batch, 5, seed=2), self.draw(loaded, batch, 5, seed=2)
                np.testing.assert_array_equal(before.ids, after.ids)
                np.testing.assert_array_equal(before.log_prob, after.log_prob)

    def test_copies_of_a_query_get_draws_of_their_own(self) -> None:
        index = self.build(self._catalogue())
        query = np.full(index.dim, 0.1, np.float32)
        draws = self.draw(index, np.stack([query] * 40), 1, seed=5, temperature=1.0)
        assert len(np.unique(draws.ids)) > 10

    @pytest.mark.parametrize("temperature", [0.1, 0.3, 2.0])
    @pytest.mark.parametrize("draws_per_query", [1, 500])
    def test_drawn_frequencies_fit_the_law(self, temperature: float, draws_per_query: int) -> None:
        """Chi-square on 40,000 draws; false alarm about 3e-7 a case."""
        index = self.build(self._catalogue())
        query = np.random.default_rng(9).standard_normal(index.dim).astype(np.float32) * 0.5
        repeated = np.stack([query] * (40_000 // draws_per_query))
        draws = self.draw(index, repeated, draws_per_query, temperature=temperature, seed=11)
        counts = np.bincount(draws.ids.ravel(), minlength=len(index))
        assert chi_square_score(counts, np.exp(self.law(index, query, temperature))) < 5

    def _catalogue(self) -> Catalogue:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((9, 6))
        vectors = centres[rng.choice(9, size=300, p=np.arange(1, 10) / 45)] + 0.3 * rng.standard_normal((300, 6))
        return Catalogue(vectors.astype(np.float32), 17, rng.standard_normal(300).astype(np.float32))

    @pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), None, "warm", True])
    def test_a_bad_temperature_is_refused(self, temperature: Any) -> None:
        index = self.build(self._catalogue())
        query = np.zeros(index.dim, np.float32)
        with pytest.raises(softindex.InputError, match="temperature"):
            self.draw(index, query, 1, temperature=temperature)
        with pytest.raises(softindex.InputError, match="temperature"):
            self.law(index, query, temperature)

    @pytest.mark.parametrize("n", [0, -3, 1.5, None, True])
    def test_a_bad_number_of_draws_is_refused(self, n: Any) -> None:
        index = self.build(self._catalogue())
        with pytest.raises(softindex.InputError, match="n "):
            self.draw(index, np.zeros(index.dim, np.float32), n)

    def test_bad_queries_are_refused(self) -> None:
        index = self.build(self._catalogue())
        wrong: list[Any] = [
            np.zeros(index.dim + 1, np.float32),
            np.zeros((0, index.dim), np.float32),
            np.zeros((1, 1, index.dim), np.float32),
            np.full(index.dim, np.nan, np.float32),
            np.full(index.dim, np.inf, np.float32),
            np.full(index.dim, 1e30, np.float32),
            ["a"] * index.dim,
            np.zeros(index.dim, np.complex64),
        ]
        for query in wrong:
            with pytest.raises(softindex.InputError):
                self.draw(index, query, 1)
            with pytest.raises(softindex.InputError):
                self.law(index, query, 0.5)

    def test_unknown_ids_are_refused(self) -> None:
        index = self.build(self._catalogue())
        query = np.zeros(index.dim, np.float32)
        for wrong in ([300], [-1], [0, 10**15]):
            with pytest.raises(softindex.UnknownIdError, match="not in this index"):
                index.log_prob(query, wrong, temperature=1.0, method=self.method, **self.options)
