"""What an installed wheel must do, with nothing but its own dependencies: `python tests/smoke.py`."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import softindex


def main() -> None:
    """Build, draw, save, load and change an index; prints the version if all is well."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((5_000, 32)).astype(np.float32) / 6
    index = softindex.build(vectors, seed=0)
    queries = rng.standard_normal((4, 32)).astype(np.float32) / 6
    logits = queries.astype(np.float64) @ vectors.T.astype(np.float64) / 0.2
    softmax = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    rows = np.tile(np.arange(len(vectors)), (4, 1))
    exact = np.exp(index.log_prob(queries, rows, temperature=0.2, method="exact"))
    assert np.allclose(exact, softmax, rtol=1e-4, atol=0)
    draws = index.sample(queries, 10, temperature=0.2, seed=7)
    best = index.top_k(queries, 3)
    assert (best.ids[:, 0] == logits.argmax(axis=1)).all()
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        again = softindex.load(Path(folder) / "index").sample(queries, 10, temperature=0.2, seed=7)
        assert (again.ids == draws.ids).all()
        with softindex.open(Path(folder) / "live", create=index) as live:
            live.remove(np.unique(best.ids[:, 0]))
            assert not np.isin(live.snapshot().top_k(queries, 3).ids, best.ids[:, 0]).any()
    layer = softindex.AdaptiveSoftmax(vectors)
    assert (layer.top_k(queries, 1, temperature=0.2).ids[:, 0] == logits.argmax(axis=1)).all()
    command = [sys.executable, "-m", "softindex", "--version"]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
