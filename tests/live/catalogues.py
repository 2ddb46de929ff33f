"""A plain dict as the model of a catalogue, and what a snapshot must have in common with it."""

import os
import warnings

import numpy as np

from softindex.remaining import MOMENTS
from softindex.statements import check_items

TEMPERATURE = 0.7
D = 6
QUERY = np.random.default_rng(9).standard_normal(D).astype(np.float32)


def vectors(n, seed=0):
    """(n, D) of a normal distribution."""
    return np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)


def in_child(work):
    """Run work in a forked process; returns whether it ended well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def model_law(model, query, temperature=TEMPERATURE):
    """Ids and the log-probability of each under the softmax, in float64; model: id -> (vector, log bias)."""
    ids = sorted(model)
    logits = np.array([np.dot(model[i][0].astype(float), query.astype(float)) / temperature + model[i][1] for i in ids])
    peak = logits.max()
    return ids, logits - peak - np.log(np.exp(logits - peak).sum())


def check_snapshot(snapshot, model, queries):
    """Every law of the snapshot is one over the items of the model, and the exact ones are its softmax."""
    assert len(snapshot) == len(model) == snapshot.sizes.sum()
    assert sorted(snapshot.ids.tolist()) == sorted(model)
    check_bounds(snapshot)
    for query in queries:
        ids, truth = model_law(model, query)
        for method, options in (("exact", {}), ("certified", {}), ("sd-2ls", {}), ("2ls", {"probes": 0})):
            if method == "sd-2ls" and snapshot.parameters["dispersion"] == "none":
                continue
            asked = {"temperature": TEMPERATURE, "method": method, **options}
            law = snapshot.log_prob(query, ids, **asked)
            assert abs(np.exp(law).sum() - 1) < 1e-4, method
            draws = snapshot.sample(query, 20, seed=3, **asked)
            assert set(draws.ids.tolist()) <= set(ids)
            assert draws.snapshot == snapshot.snapshot
            if method in ("exact", "certified"):
                np.testing.assert_allclose(law, truth, atol=2e-4)
                drawn = truth[[ids.index(i) for i in draws.ids.tolist()]]
                np.testing.assert_allclose(draws.log_prob, drawn, atol=2e-2 if method == "certified" else 2e-4)
                bounds = draws.log_partition
                assert bounds.low <= bounds.value <= bounds.high
            if method == "certified":
                assert (draws.low <= drawn + 1e-6).all()
                assert (drawn - 1e-6 <= draws.high).all()
        check_best(snapshot, model, query, min(5, len(model)))


def check_best(snapshot, model, query, k):
    scores = {i: float(v.astype(float) @ query.astype(float)) + TEMPERATURE * bias for i, (v, bias) in model.items()}
    best = snapshot.top_k(query, k, temperature=TEMPERATURE)
    wanted = sorted(scores.values(), reverse=True)[:k]
    np.testing.assert_allclose(best.scores, wanted, atol=1e-3)
    np.testing.assert_allclose([scores[i] for i in best.ids.tolist()], wanted, atol=1e-3)
    assert best.proven.all()


def dense(part):
    """The arrays of a subset or snapshot as those of an index whose vectors lie in one array, without a delta."""
    arrays, places = part._contents.arrays, part._contents.positions()
    k = int(arrays["first_known"][0]) if "first_known" in arrays else part.clusters
    places, filled = places[places < arrays["offsets"][k]], np.flatnonzero(part.sizes[:k])
    found = {name: arrays[name][filled] for name in MOMENTS if name in arrays}
    found |= {"vectors": part._contents.vectors_at(places), "offsets": np.r_[0, np.cumsum(part.sizes[filled])]}
    if "outlier_positions" in arrays:
        listed = arrays["outlier_positions"] < arrays["offsets"][k]
        found["outlier_positions"] = np.searchsorted(places, arrays["outlier_positions"][listed])
        found["outlier_vectors"] = arrays["outlier_vectors"][listed]
        found["outlier_farthest"] = arrays["outlier_farthest"]
    if "log_bias" in arrays:
        found["log_bias"] = arrays["log_bias"][places]
    return found


def check_bounds(snapshot):
    """Means are those of the items left, and radii, norms, cones and outliers bound them."""
    arrays = dense(snapshot)
    if len(arrays["vectors"]):
        check_items(arrays)
