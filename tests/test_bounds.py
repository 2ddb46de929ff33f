"""Bounds on the mass of every cluster hold, for whatever items and queries."""

import numpy as np
import pytest

from made_indexes import bounds, check_bounds, directions, made, normal, true_logits
from softindex.residuals import STORAGES

FORMS = ("none", 1, 8, "full")


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


def trial(rng, kind, storage):
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
    index = made(items, sizes, bias, form, storage=storage)
    spread = np.abs(true_logits(index, query.astype(np.float32), 1.0)).max() if bias is None else 1.0
    heat = 10.0 ** rng.uniform(-4, 4)
    # Half the temperatures are such that the scores of the items differ by next to nothing up to hundreds.
    scaled = float(heat) if rng.random() < 0.5 else float(np.clip(spread * 10.0 ** rng.uniform(-3, 4), 1e-30, 1e30))
    return index, query, scaled


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.__name__)
def test_bounds_hold_of_every_cluster(kind, storage):
    rng = np.random.default_rng(HOSTILE.index(kind))
    for _ in range(300):
        index, query, temperature = trial(rng, kind, storage)
        check_bounds(index, query, temperature)
        check_bounds(index, directions(rng, 1, index.dim)[0] * np.linalg.norm(query), temperature)


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


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXTREMES)
def test_bounds_hold_at_the_limits_of_numbers(name, form, storage):
    vectors, query, bias, temperatures = EXTREMES[name]
    if form == "full" and vectors.shape[1] > 100:
        form = 3
    for sizes in ([60], [1, 0, 20, 39]):
        index = made(vectors, sizes, bias, form, storage=storage)
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
