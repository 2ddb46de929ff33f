"""How the indexes under v1 were made.  They are kept, not made again: `python tests/saved/make.py` refuses to."""

import json
import sys
from pathlib import Path

import numpy as np

import softindex

FOLDER = Path(__file__).parent / "v1"
SETTINGS = {
    "rows": {},
    "integers": {"ids": list(range(1000, 0, -10)), "dispersion": "none", "clusters": 7},
    "strings": {"ids": [f"itém {row}" for row in range(100)], "log_bias": True, "dispersion": 2},
    "full": {"dispersion": "full", "clusters": 100},
}


def inputs():
    """Vectors (100, 20), queries (3, 20) and log biases (100,)."""
    rng = np.random.default_rng(1)
    vectors, queries = rng.standard_normal((100, 20)), rng.standard_normal((3, 20))
    return vectors.astype(np.float32), queries.astype(np.float32), rng.standard_normal(100).astype(np.float32)


def answers(index, queries):
    """Everything an index says about the queries, as JSON."""
    methods = ["exact", "2ls", "s-2ls"] + ["sd-2ls"] * (index.parameters["dispersion_asked"] != "none")
    said = {"top_k": index.top_k(queries, 5).ids.tolist(), "draws": {}, "log_prob": {}, "log_partition": {}}
    for method in methods:
        draws = index.sample(queries, 4, temperature=0.7, method=method, probes=0, seed=5)
        said["draws"][method] = draws.ids.tolist()
        said["log_prob"][method] = draws.log_prob.tolist()
        said["log_partition"][method] = index.log_partition(
            queries, temperature=0.7, method=method, probes=0
        ).value.tolist()
    return said


def main():
    """Write the indexes and what they answer."""
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there and must load for ever; a new format gets a folder of its own.")
    FOLDER.mkdir()
    vectors, queries, bias = inputs()
    for name, settings in SETTINGS.items():
        settings = {**settings, **({"log_bias": bias} if "log_bias" in settings else {})}
        index = softindex.build(vectors, **settings)
        index.save(FOLDER / name)
        (FOLDER / f"{name}.json").write_text(json.dumps(answers(index, queries), indent=1))


if __name__ == "__main__":
    main()
