"""What codes say of a score holds for every item, on every target, and however the codes were made or kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
import softindex.codes as module
from inside import look_inside
from softindex.codes import encode
from softindex.fields import flatten
from softindex.kernels import _native, reference
from softindex.laws import LAWS
from softindex.moments import measure
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored
from softindex.testing import catalogues, queries

TARGETS = _native.targets()
few = settings(max_examples=80, deadline=None)


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def request(query):
    return _native.Request(query[None], LAWS["exact"], 1.0)


class Coded:
    """Vectors in clusters, their moments and codes, and an engine over them for each target."""

    def __init__(self, vectors, sizes):
        self.vectors, self.offsets = vectors, offsets_of(sizes)
        self.moments = measure(vectors, self.offsets, log_bias=None, dispersion="none", threads=1)
        self.codes = encode(vectors, self.offsets, self.moments.means, threads=1)
        self.engines = {target: self.engine(target) for target in TARGETS}

    def engine(self, target):
        return _native.Engine(self.arrays, target)

    @property
    def arrays(self):
        """Those of the engine, by name."""
        moments, codes = self.moments, self.codes
        names = ("means", "log_sizes", "radii", "norm_min", "norm_max")
        return {
            "vectors": self.vectors,
            "offsets": self.offsets,
            **{name: getattr(moments, name) for name in names},
            **flatten(codes, "code_"),
        }

    def members(self, cluster):
        return slice(self.offsets[cluster], self.offsets[cluster + 1])

    def scores(self, query, cluster, target):
        scores = np.full(self.offsets[cluster + 1] - self.offsets[cluster], np.nan, np.float32)
        return scores, self.engines[target].coded_scores(request(query), cluster, scores)


def check_statements(coded):
    """What is stored about the items of every cluster, in extended precision."""
    codes = coded.codes
    assert np.abs(codes.values.astype(int)).max() <= 127
    for cluster in range(len(coded.moments.means)):
        rows = coded.members(cluster)
        decoded = codes.values[rows].astype(np.longdouble) * codes.scales[rows].astype(np.longdouble)[:, None]
        residuals = coded.vectors[rows].astype(np.longdouble) - coded.moments.means[cluster]
        errors = np.sqrt(((residuals - decoded) ** 2).sum(axis=1))
        assert (errors <= codes.errors[cluster]).all()
        assert (np.sqrt((decoded**2).sum(axis=1)) <= codes.lengths[cluster]).all()
        # Useful as well as true: half a step a coordinate.
        half = codes.scales[rows].max(initial=0.0) / 2 * coded.vectors.shape[1] ** 0.5
        assert codes.errors[cluster] <= 1.001 * half + 1e-12 * codes.lengths[cluster] + 1e-43


def check_query(coded, query):
    """Every score is within the slack of the float32 one and of the true one, and the same on every target."""
    truth = reference.scan(coded.vectors, query)
    dots = np.empty(len(coded.vectors), np.float32)
    _native.scan(coded.vectors, query, dots)
    for cluster in range(len(coded.moments.means)):
        rows = coded.members(cluster)
        scores, slack = coded.scores(query, cluster, TARGETS[0])
        assert np.isfinite(slack)
        assert (np.abs(scores.astype(np.float64) - dots[rows]) <= slack).all()
        assert (np.abs(scores - truth[rows]) <= slack).all()
        for target in TARGETS[1:]:
            other, same = coded.scores(query, cluster, target)
            np.testing.assert_array_equal(scores, other)
            assert slack == same


@few
@given(data=st.data(), catalogue=catalogues(biased=False))
def test_the_bound_holds_for_every_item_of_any_catalogue(data, catalogue):
    n, d = catalogue.vectors.shape
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sizes = rng.multinomial(n, rng.dirichlet(np.ones(catalogue.clusters)))
    coded = Coded(catalogue.vectors, sizes)
    check_statements(coded)
    for query in data.draw(queries(d)):
        check_query(coded, query)


CASES = {
    "norms of 1e10": np.float32(1e10) * normal(60, 12),
    "norms of 1e14": np.float32(1e14) * normal(60, 12),
    "norms of 1e-20": np.float32(1e-20) * normal(60, 12),
    "denormal": np.float32(1e-40) * normal(60, 12),
    "one huge coordinate": normal(60, 12) * np.float32([1e6] + [1.0] * 11),
    "one huge item": np.concatenate([normal(59, 12), np.full((1, 12), 1e8, np.float32)]),
    "one dimension": normal(60, 1),
    "4096 dimensions": normal(60, 4096),
    "identical": np.full((60, 12), 0.1, np.float32),
    "zero": np.zeros((60, 12), np.float32),
    "tight far away": np.nextafter(np.float32(1000), np.float32(0)) + np.float32(6e-5) * (normal(60, 12) > 0),
    "one coordinate that vanishes beside another": np.repeat(np.float32([[127, 0], [-127, 2e-20]]), 30, axis=0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bound_holds_for_hostile_items_and_queries(name):
    vectors = CASES[name]
    d = vectors.shape[1]
    coded = Coded(vectors, [31, 0, 1, 20, 8])
    check_statements(coded)
    lone = np.zeros(d, np.float32)
    lone[0], lone[-1] = 1e6, 1.0
    for query in (*normal(4, d, seed=1), lone, vectors[0], np.zeros(d, np.float32), np.ones(d, np.float32)):
        check_query(coded, query)
        with np.errstate(under="ignore"):
            check_query(coded, np.float32(1e-25) * query)
    check_query(coded, np.float32(1e12) * normal(1, d, seed=2)[0])


@pytest.mark.parametrize("d", [1, 2, 15, 16, 33, 100, 1000])
@pytest.mark.parametrize("exponent", [-60, 0, 30])
def test_the_bound_holds_where_all_rounding_errors_add_up(d, exponent):
    rng = np.random.default_rng(d)
    # Pairs x, -x: the mean is zero. The scale is a power of two, and all coordinates but the first are half-integers
    # of it, moved off the tie in the direction of the query's sign.
    signs = rng.choice([-1.0, 1.0], d)
    steps = rng.integers(-120, 120, (20, d)) + 0.5 - signs * 2.0**-12
    steps[:, 0] = 127
    items = np.concatenate([steps, -steps]) * 2.0**exponent
    coded = Coded(items.astype(np.float32), [40])
    check_statements(coded)
    query = (signs * (1 + np.arange(d) % 3)).astype(np.float32)
    check_query(coded, signs.astype(np.float32))
    check_query(coded, query)
    scores, slack = coded.scores(signs.astype(np.float32), 0, TARGETS[0])
    if d > 1:
        # The bound is met, almost: nothing below it would do.
        missed = np.abs(scores - reference.scan(coded.vectors, signs.astype(np.float32))).max()
        assert missed > 0.9 * (1 - 1 / d) ** 0.5 * slack


def test_the_bound_holds_where_all_that_is_lost_is_the_querys():
    # Items that eight bits hold exactly, with the signs of what rounding takes from each coordinate of the query.
    d = 4096
    query = np.random.default_rng(0).uniform(-1, 1, d).astype(np.float32)
    integers, unit = reference.round_query(query)
    away = query - unit * integers
    assert np.abs(integers).max() * 127 * d < 2**31
    item = np.rint(127 * away / np.abs(away).max())
    coded = Coded(np.stack([item, -item]).astype(np.float32), [2])
    assert coded.codes.errors[0] <= 1e-12 * coded.codes.lengths[0]
    check_statements(coded)
    check_query(coded, query)
    scores, slack = coded.scores(query, 0, TARGETS[0])
    # Most of the rest is the rounding that float32 products of 4096 dimensions might have.
    assert np.abs(scores - reference.scan(coded.vectors, query)).max() > 0.7 * slack


@few
@given(n=st.integers(1, 200), d=st.integers(1, 140), seed=st.integers(0, 10**6), spread=st.integers(0, 12))
def test_the_bound_holds_for_coordinates_of_every_size(n, d, seed, spread):
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((n, d)) * np.exp(spread * rng.standard_normal(d))).clip(-1e10, 1e10)
    coded = Coded(vectors.astype(np.float32), rng.multinomial(n, np.full(4, 0.25)))
    check_statements(coded)
    check_query(coded, (rng.standard_normal(d) * np.exp(spread / 2 * rng.standard_normal(d))).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@few
@given(n=st.integers(1, 90), seed=st.integers(0, 10**6))
def test_decoding_is_its_twins_to_the_bit(target, n, seed):
    rng = np.random.default_rng(seed)
    dots = rng.integers(-(2**31), 2**31, n, dtype=np.int32)
    scales, scores = np.exp(rng.normal(0, 9, n)).astype(np.float32), np.empty(n, np.float32)
    base, step = rng.normal(), 10.0 ** rng.uniform(-9, 3)
    _native.decode(dots, scales, base, step, scores, target)
    np.testing.assert_array_equal(scores, reference.decode(dots, scales, base, step).astype(np.float32))


@few
@given(n=st.integers(1, 90), d=st.integers(1, 140), seed=st.integers(0, 10**6))
def test_coded_scores_are_their_twins_to_the_bit(n, d, seed):
    coded, query = Coded(normal(n, d, seed), [n]), normal(1, d, seed + 1)[0]
    mean_dot = np.empty(1, np.float32)
    _native.scan(coded.moments.means, query, mean_dot)
    integers, step = reference.round_query(query)
    expected = reference.coded_scores(coded.codes.values, coded.codes.scales, float(mean_dot[0]), step, integers)
    np.testing.assert_array_equal(coded.scores(query, 0, TARGETS[0])[0], expected.astype(np.float32))


def test_clusters_of_one_item_are_their_means_and_lose_nothing():
    coded = Coded(normal(7, 20), [1] * 7)
    assert not coded.codes.values.any()
    for part in (coded.codes.scales, coded.codes.errors, coded.codes.lengths):
        assert not part.any()


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("values", "scales", "errors", "lengths")
    )


def test_threads_blocks_and_a_memmap_change_nothing(tmp_path, monkeypatch):
    vectors, sizes = normal(1000, 12), [400, 0, 1, 7, 0, 500, 92]
    offsets = offsets_of(sizes)
    means = measure(vectors, offsets, log_bias=None, dispersion="none", threads=1).means
    one = encode(vectors, offsets, means, threads=1)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert same(one, encode(mapped, offsets, means, threads=3))
    monkeypatch.setattr(module, "BLOCK_VALUES", 12 * 37)
    calls = []
    assert same(one, encode(vectors, offsets, means, threads=3, report=lambda *call: calls.append(call)))
    assert calls[-1] == ("encoding", 1000, 1000)
    monkeypatch.setattr(module, "BLOCK_VALUES", 1)
    assert same(one, encode(vectors, offsets, means, threads=2))


def built(**settings):
    return softindex.build(normal(80, 6), codes=True, **settings)


@pytest.mark.parametrize("mmap", [True, False])
def test_codes_are_saved_and_loaded(tmp_path, mmap):
    index = built(log_bias=normal(80, 1, seed=3)[:, 0])
    index.save(tmp_path / "index")
    loaded = softindex.load(tmp_path / "index", mmap=mmap)
    assert loaded.parameters["codes"] is True
    assert same(look_inside(index).codes, look_inside(loaded).codes)
    loaded.save(tmp_path / "again")
    for path in (tmp_path / "index").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_codes_change_no_other_answer():
    plain, query = softindex.build(normal(80, 6)), normal(1, 6, seed=1)[0]
    assert plain.parameters["codes"] is False
    for method in ("exact", "sd-2ls"):
        one, other = (index.sample(query, 9, temperature=0.5, method=method, seed=1) for index in (plain, built()))
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.log_prob, other.log_prob)


def changed(stored, *, drop=(), parameters=None, **arrays):
    kept = {name: array for name, array in stored.arrays.items() if name not in drop}
    return Stored(stored.kind, {**stored.parameters, **(parameters or {})}, {**kept, **arrays})


WRONG = {
    "no scales": lambda s: changed(s, drop=["code_scales"]),
    "no codes though it says so": lambda s: changed(s, drop=[name for name in s.arrays if name.startswith("code_")]),
    "codes though it says no": lambda s: changed(s, parameters={"codes": False}),
    "wide codes": lambda s: changed(s, code_values=s.arrays["code_values"].astype(np.int16)),
    "short codes": lambda s: changed(s, code_values=s.arrays["code_values"][:-1].copy()),
    "narrow codes": lambda s: changed(s, code_values=s.arrays["code_values"][:, :-1].copy()),
    "flat codes": lambda s: changed(s, code_values=s.arrays["code_values"].ravel()),
    "short scales": lambda s: changed(s, code_scales=s.arrays["code_scales"][:-1].copy()),
    "errors in double": lambda s: changed(s, code_errors=s.arrays["code_errors"].astype(np.float64)),
    "short errors": lambda s: changed(s, code_errors=s.arrays["code_errors"][:-1].copy()),
    "long lengths": lambda s: changed(s, code_lengths=np.zeros(99, np.float32)),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_codes_are_refused(name, tmp_path):
    built().save(tmp_path / "index")
    save_stored(tmp_path / "wrong", WRONG[name](load_stored(tmp_path / "index")))
    with pytest.raises(softindex.CorruptIndexError):
        softindex.load(tmp_path / "wrong")


def test_the_engine_refuses_codes_that_do_not_fit_and_questions_it_cannot_answer():
    coded, query, scores = Coded(normal(9, 5), [4, 5]), np.ones(5, np.float32), np.empty(4, np.float32)
    engine = coded.engines[TARGETS[0]]
    with pytest.raises(ValueError, match=r"code_values has shape \(8,5,\), expected \(9,5,\)"):
        _native.Engine({**coded.arrays, "code_values": coded.codes.values[:-1]})
    for cluster in (-1, 2):
        with pytest.raises(ValueError, match="no such cluster"):
            engine.coded_scores(request(query), cluster, scores)
    with pytest.raises(ValueError, match="shapes disagree"):
        engine.coded_scores(request(query), 1, scores)
    with pytest.raises(ValueError, match="keeps no codes"):
        softindex.build(normal(9, 5))._engine.coded_scores(request(query), 0, scores)
