"""Certified draws are draws from the softmax, and what is called proven holds, for whatever items and queries."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import softindex
from inside import look_inside, put_together
from softindex.codes import encode
from softindex.errors import InputError, MethodError
from softindex.ids import id_map
from softindex.index import Index
from softindex.kernels import Request
from softindex.moments import measure
from softindex.testing import chi_square_score

SAVED = Path(__file__).parent / "saved" / "v1"
FORMS = ("none", 1, 8, "full")


def made(vectors, sizes, bias=None, dispersion="none", codes=False):
    """An index whose clusters are the next sizes[0], sizes[1], ... of the vectors (n, d)."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    offsets, rows = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.arange(len(vectors))
    form = min(dispersion, vectors.shape[1]) if isinstance(dispersion, int) else dispersion
    bias = None if bias is None else np.asarray(bias, np.float32)
    moments = measure(vectors, offsets, log_bias=bias, dispersion=form, threads=1)
    coded = encode(vectors, offsets, moments.means, threads=1) if codes else None
    return Index(put_together(vectors, offsets, id_map(None, rows, rows), bias, moments, coded))


def bounds(index, query, temperature):
    """lower, upper and scanned log masses (k,), relative to pivot / temperature, and the pivot."""
    lower, upper, scanned = (np.empty(index.clusters) for _ in range(3))
    request = Request(query[None], index._law("certified", None, None)[0], temperature)
    pivot = index._engine.mass_bounds(request, lower, upper, scanned)
    return lower, upper, scanned, pivot


def true_logits(index, query, temperature, pivot=0.0):
    """(n,) in extended precision, relative to pivot / temperature."""
    contents = look_inside(index)
    logits = (contents.vectors.astype(np.longdouble) @ query.astype(np.longdouble) - pivot) / np.longdouble(temperature)
    return logits if contents.log_bias is None else logits + contents.log_bias


def log_sum(logits):
    top = logits.max()
    return top + np.log(np.exp(logits - top).sum())


def check_bounds(index, query, temperature):
    """Every cluster's mass lies within its bounds, scanned or true; returns the widest distance of two bounds."""
    query = np.ascontiguousarray(query, np.float32)
    lower, upper, scanned, pivot = bounds(index, query, temperature)
    logits, offsets = true_logits(index, query, temperature, pivot), look_inside(index).offsets
    for cluster in range(index.clusters):
        if offsets[cluster] == offsets[cluster + 1]:
            assert lower[cluster] == upper[cluster] == -np.inf
            continue
        true = log_sum(logits[offsets[cluster] : offsets[cluster + 1]])
        assert np.isfinite(lower[cluster])
        assert np.isfinite(upper[cluster])
        for mass in (scanned[cluster], true):
            assert lower[cluster] <= mass <= upper[cluster], (cluster, lower[cluster], float(mass), upper[cluster])
    held = np.diff(offsets) > 0
    return float((upper[held] - lower[held]).max())


def directions(rng, n, d):
    vectors = rng.standard_normal((n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def two_points(rng, n, d):
    """The law that attains Bennett's bound: one item at the far end, all others slightly on the other side."""
    axis = directions(rng, 1, d)[0]
    along = np.where(np.arange(n) % max(2, n // 2) == 0, 1.0, -1.0 / max(1, n // 2 - 1))
    return rng.choice([0.0, 1.0, 10.0]) * directions(rng, 1, d) + along[:, None] * axis, axis


def on_the_sphere(rng, n, d):
    """Every item as far from the mean as any other, in the direction of the query or against it."""
    axis = directions(rng, 1, d)[0]
    return 3 * directions(rng, 1, d) + rng.choice([-1.0, 1.0], size=n)[:, None] * axis, axis


def far_offset(rng, n, d):
    """Large common coordinates and differences of a few units in the last place, so that rounding decides."""
    signs = np.where(np.arange(d) % 2, -1.0, 1.0) if rng.random() < 0.5 else np.ones(d)
    base = rng.choice([1e3, 1e6]) * signs
    return base * (1 + 6e-8 * rng.integers(-3, 4, size=(n, d))), rng.choice([1.0, -1.0]) * rng.choice(
        [np.ones(d), signs]
    )


def cone(rng, n, d):
    """Items in a narrow cone of lengths from 0.1 to 1, and a query inside it, beside it, or opposite."""
    axis = directions(rng, 1, d)[0]
    items = axis + rng.choice([0.01, 0.1, 0.5]) * directions(rng, n, d)
    return items * rng.uniform(0.1, 1, size=(n, 1)), rng.choice([-1, 0.3, 1]) * axis + rng.choice([0, 1]) * items[0]


def duplicates(rng, n, d):
    items = directions(rng, 3, d)[rng.integers(3, size=n)]
    items[rng.random(n) < 0.2] = 0.0
    return items, directions(rng, 1, d)[0]


def isotropic(rng, n, d):
    return rng.standard_normal((n, d)), rng.standard_normal(d)


def lone_coordinate(rng, n, d):
    """A query that loses all but one coordinate when it is rounded to integers."""
    query = rng.standard_normal(d)
    query[rng.integers(d)] *= 1e4
    items = rng.standard_normal((n, d))
    items[:, np.argmax(np.abs(query))] *= rng.choice([0.0, 1e-5, 1.0])
    return items, query


HOSTILE = (two_points, on_the_sphere, far_offset, cone, duplicates, isotropic, lone_coordinate)


def trial(rng, kind):
    """An index of five clusters, one of them empty and one of a single item, a query, and a temperature."""
    d = int(rng.choice([1, 2, 7, 16, 17, 33, 100], p=[0.2, 0.2, 0.2, 0.15, 0.15, 0.05, 0.05]))
    n = int(rng.choice([8, 20, 70]))
    items, query = kind(rng, n, d)
    sizes = [0, 1, *rng.multinomial(n - 1, rng.dirichlet(np.ones(3)))]
    items = items * rng.choice([1e-20, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e8])
    query = query * rng.choice([1e-20, 1e-3, 1.0, 1.0, 1.0, 1e6])
    bias = None
    if rng.random() < 0.4:
        bias = rng.choice([1e-3, 1.0, 30.0, 1000.0, 1e6 / 5]) * rng.standard_normal(n).clip(-5, 5)
    form = FORMS[rng.integers(len(FORMS))] if d < 33 else FORMS[rng.integers(3)]
    index = made(items, sizes, bias, form)
    spread = np.abs(true_logits(index, query.astype(np.float32), 1.0)).max() if bias is None else 1.0
    heat = 10.0 ** rng.uniform(-4, 4)
    # Half the temperatures are such that the scores of the items differ by next to nothing up to hundreds.
    scaled = float(heat) if rng.random() < 0.5 else float(np.clip(spread * 10.0 ** rng.uniform(-3, 4), 1e-30, 1e30))
    return index, query, scaled


@pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.__name__)
def test_bounds_hold_of_every_cluster(kind):
    rng = np.random.default_rng(HOSTILE.index(kind))
    for _ in range(300):
        index, query, temperature = trial(rng, kind)
        check_bounds(index, query, temperature)
        check_bounds(index, directions(rng, 1, index.dim)[0] * np.linalg.norm(query), temperature)


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


EXTREMES = {
    "norms of 1e14": (1e14 * normal(60, 12), 1e14 * normal(1, 12, 1)[0], None, (1e24, 1e26, 1e28)),
    "norms of 1e-20": (1e-20 * normal(60, 12), 1e-20 * normal(1, 12, 1)[0], None, (1e-30, 1.0)),
    "means below the smallest float32": (1e-44 * normal(60, 1), np.array([7.8e12]), None, (1e-30, 1e-29)),
    "4096 dimensions": (normal(60, 4096), normal(1, 4096, 1)[0], None, (1e-4, 0.1, 10.0, 1e4)),
    "4096 dimensions of one sign": (1e6 + normal(60, 4096), np.ones(4096), None, (1e2, 1e6)),
    "weights below the smallest float64": (
        np.tile([[0.0, 1e7], [0.0, 1e7], [1e7, 1e7]], (20, 1)),
        np.array([1e6, 0.0]),
        np.tile([0.0, 0.0, -800.0], 20),
        (1e13 / 700, 1e13 / 900, 1e13 / 3000),
    ),
    # The dot with the mean of the heavy item vanishes, and tells nothing of the angle between the two.
    "a mean too short for its angle": (
        np.tile([[0.0, 1e-32], [1e10, 1e10]], (30, 1)),
        np.array([7e-14, 7e-14]),
        np.tile([0.0, -200.0], 30),
        (1e-6, 1e-5),
    ),
    "biases of 1e6": (normal(60, 12), normal(1, 12, 1)[0], 1e6 * np.sign(normal(1, 60, 2)[0]), (1e-5, 1e-4, 1.0)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXTREMES)
def test_bounds_hold_at_the_limits_of_numbers(name, form):
    vectors, query, bias, temperatures = EXTREMES[name]
    if form == "full" and vectors.shape[1] > 100:
        form = 3
    for sizes in ([60], [1, 0, 20, 39]):
        index = made(vectors, sizes, bias, form)
        for temperature in temperatures:
            check_bounds(index, query, temperature)
            check_bounds(index, -query, temperature)


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_the_exponentials_is_allowed_for(form):
    # Logits so near to each other that a cluster's bounds meet but for what float32 rounds.
    rng = np.random.default_rng(5)
    for _ in range(100):
        index = made(rng.standard_normal((140, 5)), [70, 70], None, form)
        width = check_bounds(index, rng.standard_normal(5), 10.0 ** rng.uniform(2, 5))
        assert width < 1e-2


@pytest.mark.parametrize("d", [1, 16, 100, 4096])
def test_bounds_hold_where_all_roundings_add_up(d):
    # Equal coordinates: every addition of a dot product rounds to the same side.
    rng = np.random.default_rng(d)
    for _ in range(40):
        index = made(np.full((3, d), rng.uniform(0.5, 1.0)), [3])
        check_bounds(index, np.full(d, rng.uniform(0.5, 1.0)), 1e-8 * d)


@pytest.mark.parametrize("d", [2, 5, 40])
def test_bounds_hold_almost_opposite_to_a_cone(d):
    # There the angle hangs on the last digits of its cosine.
    rng = np.random.default_rng(d)
    for _ in range(300):
        axis, side = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        items = np.concatenate([np.tile(axis + 0.6 * side, (4, 1)), np.tile(axis - 0.6 * side, (4, 1))])
        query = -axis + 10.0 ** rng.uniform(-6, -3) * side
        check_bounds(made(items, [8], None, "none"), query, 10.0 ** rng.uniform(-6, -3))


def test_the_upper_bound_is_attained():
    # Two-point laws are the worst there are: bounds that are much wider there are not Bennett's.
    for n in (3, 20, 200):
        items = np.zeros((n, 4))
        items[:, 0] = np.where(np.arange(n) == 0, 1.0, -1.0 / (n - 1))
        for temperature in (0.01, 0.1, 1.0):
            _, upper, scanned, _ = bounds(made(items, [n], None, "full"), np.eye(4, dtype=np.float32)[0], temperature)
            assert scanned[0] <= upper[0] <= scanned[0] + 0.01


def test_negative_cosines_take_the_shortest_item():
    rng = np.random.default_rng(3)
    items = (np.eye(6)[0] + 0.05 * directions(rng, 50, 6)) * np.geomspace(0.01, 100, 50)[:, None]
    for form in FORMS:
        index = made(items, [50], None, form)
        for temperature in (1e-4, 1e-2, 1.0, 100.0):
            check_bounds(index, -np.eye(6)[0], temperature)
            check_bounds(index, -np.eye(6)[0] + 0.5 * np.eye(6)[1], temperature)


@cache
def groups(codes=False, biased=False, n=900, d=8, clusters=18, form="full"):
    """Groups of unit vectors, and a query among some of them."""
    rng = np.random.default_rng(11)
    centres = directions(rng, clusters, d)
    items = centres[rng.integers(clusters, size=n)] + 0.35 * rng.standard_normal((n, d))
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    index = softindex.build(
        items.astype(np.float32), clusters=clusters, codes=codes, log_bias=bias, dispersion=form, threads=1
    )
    query = centres[:3].sum(axis=0)
    return index, (query / np.linalg.norm(query)).astype(np.float32)


def exact_law(index, query, temperature):
    return np.exp(index.log_prob(query, np.arange(len(index)), temperature=temperature, method="exact", threads=1))


def check_law(index, query, temperature, n, copies):
    """Draws fit the softmax, and are made from less than all items, after some clusters were rejected.

    A score above 5 has a chance of 3e-7.
    """
    batch = np.tile(query, (copies, 1))
    drawn = index.sample(batch, n, temperature=temperature, method="certified", seed=17, threads=1)
    law = exact_law(index, query, temperature)
    assert (law > 5 / drawn.ids.size).sum() >= 5
    assert chi_square_score(np.bincount(drawn.ids.ravel(), minlength=len(index)), law) < 5
    assert drawn.items_scored.max() <= len(index)
    if n == 1:
        sizes = np.empty(len(index), np.int64)
        sizes[index.ids] = np.repeat(index.sizes, index.sizes)
        rejected = drawn.items_scored > sizes[drawn.ids[:, 0]]
        assert drawn.items_scored.mean() < 0.9 * len(index)
        assert rejected.mean() > 0.05
    return drawn


@pytest.mark.parametrize("form", ["none", "full"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("temperature", [0.1, 0.3])
def test_draws_fit_the_softmax_though_clusters_are_rejected(temperature, codes, biased, form):
    index, query = groups(codes, biased, form=form)
    check_law(index, query, temperature, 1, 15_000)
    check_law(index, query, temperature, 50, 300)


@cache
def near_ties(codes):
    """Clusters in a cap about the query, where no score is far above its mean's, and as many on the other side."""
    rng = np.random.default_rng(13)
    around = directions(rng, 240, 23) * rng.uniform(0.05, 0.2, size=(240, 1))
    ahead = np.sqrt(1 - (around**2).sum(axis=1)) * np.where(np.arange(240) < 120, 1, -1)
    return made(np.column_stack([ahead, around]), [20] * 12, None, "none", codes)


@pytest.mark.parametrize("error", [0.1, 0.3, 0.69, 0.71, 2.0])
def test_draws_fit_the_softmax_where_codes_are_coarse(error):
    # Codes off by this much over the temperature: proposals are rejected item by item, or floats serve instead.
    index, query = near_ties(True), np.eye(24, dtype=np.float32)[0]
    temperature = float(np.median(look_inside(index).codes.errors)) / error
    drawn = check_law(index, query, temperature, 1, 15_000)
    check_law(index, query, temperature, 50, 300)
    plain = check_law(near_ties(False), query, temperature, 1, 15_000)
    # The same law, by another way if codes took part.
    assert (error > 1) == bool((drawn.ids == plain.ids).all())


def test_draws_of_one_query_do_not_hang_together():
    # Pairs of consecutive draws, which share scans, fit the product of the laws; a chance of 3e-7.
    index, query = groups(codes=True)
    drawn = index.sample(np.tile(query, (8000, 1)), 2, temperature=0.05, method="certified", seed=3, threads=1).ids
    law, n = exact_law(index, query, 0.05), len(index)
    assert chi_square_score(np.bincount(drawn[:, 0] * n + drawn[:, 1], minlength=n * n), np.outer(law, law).ravel()) < 5


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 0.2, 1.0, 1e3])
def test_log_probabilities_are_between_their_bounds(codes, biased, temperature):
    index, _ = groups(codes, biased)
    queries = normal(20, index.dim, seed=8).astype(np.float32)
    widths = []
    for n in (1, 50):
        drawn = index.sample(queries, n, temperature=temperature, method="certified", seed=1, threads=1)
        exact = index.log_prob(queries, drawn.ids, temperature=temperature, method="exact", threads=1)
        assert (drawn.low <= exact).all()
        assert (exact <= drawn.high).all()
        assert (drawn.low <= drawn.log_prob).all()
        assert (drawn.log_prob <= drawn.high).all()
        assert (drawn.high <= 0).all()
        for i, query in enumerate(queries):
            logits = true_logits(index, query, temperature)
            places = np.argsort(index.ids)[drawn.ids[i]]
            true = logits[places] - log_sum(logits)
            assert (drawn.low[i] <= true).all()
            assert (true <= drawn.high[i] + 1e-18).all()
        widths.append((drawn.high - drawn.low)[:, 0])
    # A scan knows a mass to within a few times 1e-4, which may be less well than a bound does.
    assert (widths[1] <= widths[0] + 1e-3).all()
    assert widths[1].mean() <= widths[0].mean() + 2e-4


def bracket(index, queries, temperature, width, confidence=1.0, seed=0):
    values, scored = np.empty((3, len(queries))), np.empty(len(queries), np.int64)
    law = index._law("certified", None, None)[0]
    request = Request(queries, law, temperature, seed=seed)
    request.bound(width, confidence)
    index._engine.log_partition(request, values, scored)
    return *values, scored


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 100.0])
def test_log_partition_is_between_its_bounds(codes, biased, temperature):
    index, _ = groups(codes, biased)
    queries = normal(12, index.dim, seed=9).astype(np.float32)
    true = np.array([log_sum(true_logits(index, query, temperature)) for query in queries])
    _, low, high, scored = bracket(index, queries, temperature, 1e-12)
    assert (scored == len(index)).all()
    finest = high - low
    for width in (1e-12, 3e-4, 1e-3, 0.01, 0.1, 1.0, 100.0):
        value, low, high, scored = bracket(index, queries, temperature, width)
        assert (low <= true).all()
        assert (true <= high).all()
        assert (low <= value).all()
        assert (value <= high).all()
        assert (high - low <= np.maximum(width, 1.001 * finest)).all()
        assert (scored <= len(index)).all()
        assert ((high - low <= width) | (scored == len(index))).all()
        estimate = index.log_partition(queries, temperature=temperature, method="certified", width=width)
        np.testing.assert_array_equal([estimate.value, estimate.low, estimate.high], [value, low, high])
    assert temperature < 0.1 or (scored == 0).all()


def test_codes_do_not_keep_log_partition_from_its_width():
    # Far from zero and near to each other: codes lose little, but the rounding of two products is more than that.
    rng = np.random.default_rng(1)
    centres = 100 * directions(rng, 20, 16)
    items = np.repeat(centres, 50, axis=0) + 1e-3 * rng.standard_normal((1000, 16))
    query = (0.01 * centres[0] + 0.1 * directions(rng, 1, 16)[0]).astype(np.float32)
    for codes in (False, True):
        found = made(items, [50] * 20, codes=codes).log_partition(
            query, temperature=0.1, method="certified", width=2e-3
        )
        assert found.high - found.low <= 2e-3


@cache
def large():
    """Too many items for bounds alone: an estimate with confidence has to draw."""
    rng = np.random.default_rng(21)
    items = rng.standard_normal((40_000, 6)).astype(np.float32)
    return softindex.build(items, clusters=400, threads=1), rng.standard_normal((400, 6)).astype(np.float32)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_bounds_with_confidence_hold_as_often_as_they_say(confidence):
    index, queries = large()
    temperature = 2.0
    logits = look_inside(index).vectors.astype(np.float64) @ queries.T.astype(np.float64) / temperature
    true = np.log(np.exp(logits - logits.max(axis=0)).sum(axis=0)) + logits.max(axis=0)
    value, low, high, scored = bracket(index, queries, temperature, 1e-3, confidence, seed=5)
    assert (low <= value).all()
    assert (value <= high).all()
    # It did draw: another seed gives other bounds, narrower than those proven of all that was scanned, for most.
    other = bracket(index, queries, temperature, 1e-3, confidence, seed=6)
    drew = (other[1] != low) | (other[2] != high)
    assert drew.mean() > 0.9
    assert (scored < len(index)).mean() > 0.9
    surer = bracket(index, queries, temperature, 1e-3, 1 - 1e-12, seed=5)
    assert ((high - low)[drew] < (surer[2] - surer[1])[drew]).mean() > 0.9
    covered = ((low <= true) & (true <= high)).sum() + ((other[1] <= true) & (true <= other[2])).sum()
    # Five standard deviations of a binomial: a chance below 1e-6.
    trials = 2 * len(queries)
    assert covered >= trials * confidence - 5 * (trials * confidence * (1 - confidence)) ** 0.5


def test_bounds_with_confidence_follow_the_seed():
    index, queries = large()
    few = queries[:9]
    first = index.log_partition(few, temperature=2.0, method="certified", confidence=0.9, seed=4, width=1e-3)
    for threads in (1, 2):
        again = index.log_partition(
            few[::-1], temperature=2.0, method="certified", confidence=0.9, seed=4, width=1e-3, threads=threads
        )
        for field in ("value", "low", "high"):
            np.testing.assert_array_equal(getattr(first, field), getattr(again, field)[::-1])


@pytest.mark.parametrize("confidence", [0, 0.0, 1, 1.0, -1.0, float("nan"), "x", True, 2, 2.0, [0.5]])
def test_confidence_is_a_number_between_0_and_1(confidence):
    index, query = groups()
    with pytest.raises(InputError, match="confidence is"):
        index.log_partition(query, temperature=1.0, method="certified", confidence=confidence)


@pytest.mark.parametrize("method", ["exact", "2ls", "s-2ls", "hierarchical", "sd-hierarchical", "top-k"])
def test_confidence_needs_bounds(method):
    index = softindex.build(normal(300, 4).astype(np.float32), tree=True, clusters=5, threads=1)
    with pytest.raises(MethodError):
        index.log_partition(np.ones(4, np.float32), temperature=1.0, method=method, confidence=0.9)


@pytest.mark.parametrize("codes", [False, True])
def test_draws_and_bounds_do_not_depend_on_the_batch_or_on_threads(codes, tmp_path):
    index, _ = groups(codes, True)
    index.save(tmp_path / "index")
    queries = normal(41, index.dim, seed=4).astype(np.float32)

    def ask(index, queries, threads=1):
        drawn = index.sample(queries, 7, temperature=0.1, method="certified", seed=2, threads=threads)
        estimate = index.log_partition(queries, temperature=0.1, method="certified", width=0.05, threads=threads)
        return [
            drawn.ids,
            drawn.log_prob,
            drawn.low,
            drawn.high,
            drawn.items_scored,
            estimate.value,
            estimate.low,
            estimate.high,
        ]

    whole = ask(index, queries)
    alone = [np.array(part) for part in zip(*(ask(index, query) for query in queries), strict=True)]
    others = [
        ask(index, queries, threads=2),
        [part[::-1] for part in ask(index, queries[::-1])],
        alone,
        ask(softindex.load(tmp_path / "index"), queries),
        ask(softindex.load(tmp_path / "index", mmap=False), queries),
    ]
    for other in others:
        for mine, theirs in zip(whole, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", sorted(path.stem for path in SAVED.glob("*.json")))
def test_an_index_without_cosines_is_certified_too(name):
    index = softindex.load(SAVED / name)
    assert look_inside(index).moments.min_cosine is None
    queries = normal(6, index.dim, seed=6).astype(np.float32)
    for temperature in (0.01, 0.1, 1.0, 100.0):
        for query in queries:
            check_bounds(index, query, temperature)
        drawn = index.sample(queries, 20, temperature=temperature, method="certified", seed=0)
        exact = index.log_prob(queries, drawn.ids, temperature=temperature, method="exact")
        assert (drawn.low <= exact).all()
        assert (exact <= drawn.high).all()


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-3, 0.03, 1e30])
def test_useless_bounds_cost_no_more_than_a_scan(codes, temperature):
    items = normal(3000, 24, seed=7).astype(np.float32)
    index = softindex.build(items, clusters=50, codes=codes, threads=1)
    queries = normal(30, 24, seed=8).astype(np.float32)
    for n in (1, 200):
        drawn = index.sample(queries, n, temperature=temperature, method="certified", seed=0, threads=1)
        assert (drawn.items_scored <= len(index)).all()
        assert (drawn.items_scored > 0).all()
    best = index.top_k(queries, 1)
    if temperature <= 1e-6:
        assert (drawn.ids == best.ids).all()


def test_many_clusters_of_few_items_are_scanned_and_bounded():
    # Where bounds would cost more than they save, draws are those of "exact" with bounds for its rounding.
    items = normal(10_001, 4, seed=2).astype(np.float32)
    index = softindex.build(items, clusters=5000, threads=1)
    queries = normal(5, 4, seed=3).astype(np.float32)
    drawn = index.sample(queries, 30, temperature=0.2, method="certified", seed=0, threads=1)
    same = index.sample(queries, 30, temperature=0.2, method="exact", seed=0, threads=1)
    np.testing.assert_array_equal(drawn.ids, same.ids)
    assert (drawn.low < same.log_prob).all()
    assert (same.log_prob <= drawn.high).all()
    for i, query in enumerate(queries):
        logits = true_logits(index, query, 0.2)
        true = logits[np.argsort(index.ids)[drawn.ids[i]]] - log_sum(logits)
        assert (drawn.low[i] <= true).all()
        assert (true <= drawn.high[i]).all()
