"""What recall and time of the search methods are computed from."""

import numpy as np
import torch

from experiments.retrieval_tradeoff import draw, enlarge, headline, measure, table_of
from softindex import mol


def test_an_enlarged_set_starts_with_its_items_and_goes_on_near_them():
    items = np.random.default_rng(0).standard_normal((50, 6), dtype=np.float32)
    more = enlarge(items, 2000)
    assert more.shape == (2000, 6)
    assert np.array_equal(more[:50], items)
    nearest = np.linalg.norm(more[50:, None] - items, axis=2).min(axis=1)
    # Noise of half a standard deviation in six coordinates: farther than 5 has a chance below 1e-12 per item.
    assert nearest.min() > 0
    assert nearest.max() < 5
    assert enlarge(items, 50).shape == items.shape


def test_every_method_is_measured_against_brute_force():
    torch.manual_seed(0)
    shape = {"query_components": 4, "item_components": 4, "component_dim": 4}
    index = mol.build(mol.MixtureOfLogits(6, 6, **shape).eval(), torch.randn(1500, 6).numpy())
    measured = measure(index, np.random.default_rng(1).standard_normal((8, 6), dtype=np.float32))
    assert {method for method, _ in measured} == {
        "brute-force",
        "two-pass",
        "average",
        "per-embedding",
        "clusters",
        "combined",
    }
    assert measured["brute-force", None]["recall"] == measured["two-pass", None]["recall"] == 1
    # More candidates of the same order include the fewer.
    assert measured["average", 200]["recall"] <= measured["average", 500]["recall"]
    assert all(0 <= one["scored"] <= 1 for one in measured.values())
    assert "times brute force" in headline(measured, 1500)
    assert len(table_of(measured, 1500, 8, 0.5).rows) == len(measured)
    assert draw({1500: measured, 3000: measured}).startswith("<svg")
