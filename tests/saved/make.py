"""How the directories under v3 were made.  They are kept, not made again: `python tests/saved/make.py` refuses to."""

import json
import sys
from pathlib import Path

import numpy as np

import softindex

FOLDER = Path(__file__).parent / "v3"
SETTINGS = {
    "rows": {},
    "integers": {"ids": list(range(1000, 0, -10)), "dispersion": "none", "clusters": 7},
    "strings": {"ids": [f"itém {row}" for row in range(100)], "log_bias": True, "dispersion": 2},
    "full": {"dispersion": "full", "clusters": 100},
    "calibrated": {"queries": True},
    "eight bits": {"storage": "int8", "bias": True, "clusters": 9},
    "everything": {"bias": True, "log_bias": True, "codes": True, "tree": True, "clusters": 9},
}
"""Options of `build` for each index; version 1 has the first four, and version 2 none that is
calibrated or in eight bits."""


def inputs():
    """Vectors (100, 20), queries (3, 20) and biases (100,)."""
    rng = np.random.default_rng(1)
    vectors, queries = rng.standard_normal((100, 20)), rng.standard_normal((3, 20))
    return vectors.astype(np.float32), queries.astype(np.float32), rng.standard_normal(100).astype(np.float32)


def answers(index, queries):
    """Everything an index says about the queries, as JSON."""
    methods = ["exact", "2ls", "s-2ls"] + ["sd-2ls"] * (index.parameters["dispersion_asked"] != "none")
    methods += ["hierarchical", "sd-hierarchical"] * index.parameters["tree"]
    said = {"top_k": index.top_k(queries, 5).ids.tolist(), "draws": {}, "log_prob": {}, "log_partition": {}}
    for method in methods:
        draws = index.sample(queries, 4, temperature=0.7, method=method, probes=0, seed=5)
        said["draws"][method] = draws.ids.tolist()
        said["log_prob"][method] = draws.log_prob.tolist()
        if "hierarchical" not in method:
            estimate = index.log_partition(queries, temperature=0.7, method=method, probes=0)
            said["log_partition"][method] = estimate.value.tolist()
    return said


def make_index(settings):
    """An index of the inputs, built with one of SETTINGS."""
    vectors, _, bias = inputs()
    given = {word: bias for word in ("bias", "log_bias") if word in settings}
    given |= {"queries": vectors[:20]} if "queries" in settings else {}
    return softindex.build(vectors, **{**settings, **given})


def make_mixture():
    """A learned-similarity index with gates, users and string ids."""
    import torch

    from softindex import mol

    torch.manual_seed(0)
    similarity = mol.MixtureOfLogits(
        20, 20, query_components=3, item_components=2, component_dim=6, users=7, temperature=0.1
    ).eval()
    return mol.build(similarity, inputs()[0], ids=[f"item {row}" for row in range(100)])


def make_layer():
    """A calibrated layer with both kinds of bias, wide enough for its screens."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((60, 300)).astype(np.float32)
    bias, log_bias = (rng.standard_normal(60).astype(np.float32) for _ in range(2))
    layer = softindex.AdaptiveSoftmax(weights, bias, log_bias=log_bias)
    layer.calibrate(rng.standard_normal((80, 300)).astype(np.float32))
    return layer


def mixture_answers(index):
    """The best items of three queries."""
    best = index.top_k(inputs()[1], 5, users=[1, 2, 3])
    return {"top_k": best.ids.tolist(), "scores": best.scores.tolist()}


def layer_answers(layer):
    """The best classes of three queries, with probabilities."""
    queries = np.random.default_rng(3).standard_normal((3, 300)).astype(np.float32)
    best = layer.top_k(queries, 5, temperature=2.0, guarantee="calibrated")
    # At the default epsilon the values may be anywhere within 30 %: they say little about what was saved.
    scores = layer.log_prob(queries, range(60), temperature=2.0, epsilon=1e-9)
    return {"top_k": best.ids.tolist(), "scores": scores.tolist()}


def main():
    """Write the directories and what they answer."""
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists and must always load; a new format gets a folder of its own.")
    FOLDER.mkdir()
    queries = inputs()[1]
    for name, settings in SETTINGS.items():
        index = make_index(settings)
        index.save(FOLDER / name)
        (FOLDER / f"{name}.json").write_text(json.dumps(answers(index, queries), indent=1))
    for name, product, said in (
        ("mixture", make_mixture(), mixture_answers),
        ("layer", make_layer(), layer_answers),
    ):
        product.save(FOLDER / name)
        (FOLDER / f"{name}.json").write_text(json.dumps(said(product), indent=1))


if __name__ == "__main__":
    main()
