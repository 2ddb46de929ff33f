"""Find the most probable classes of a large output layer without reading all of its weights.

AdaptiveSoftmax copies the layer into four and eight bits.  A query is scored on the copies first; only the rows that
may matter are scored exactly, so the answer is proven.
"""

import tempfile
from pathlib import Path

import numpy as np

import softindex

CLASSES, DIM, QUERIES, BEST = 20_000, 512, 50, 3


def main():
    """Compare the answers with the full layer, then save and load."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CLASSES, DIM), dtype=np.float32) / np.float32(np.sqrt(DIM))
    # Each query points towards one class, as the last hidden state of a trained model does.
    classes = rng.integers(CLASSES, size=QUERIES)
    queries = 12 * weights[classes] + 0.1 * rng.standard_normal((QUERIES, DIM), dtype=np.float32)

    layer = softindex.AdaptiveSoftmax(weights)
    best = layer.top_k(queries, BEST, temperature=1.0, epsilon=0.3)

    logits = queries.astype(np.float64) @ weights.T.astype(np.float64)
    right = np.mean(np.sort(best.ids) == np.sort(np.argsort(-logits)[:, :BEST]))
    print(f"the {BEST} best of {CLASSES:,} classes: {right:.0%} right, {best.proven.mean():.0%} proven")
    print(f"weights read: {np.mean(best.bytes_read) / weights.nbytes:.0%}")
    print(f"first query: class {best.ids[0, 0]} with probability {np.exp(best.log_prob[0, 0]):.3f}")
    print(f"its log Z lies between {best.log_partition.low[0]:.3f} and {best.log_partition.high[0]:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        layer.save(Path(folder) / "layer")
        again = softindex.load(Path(folder) / "layer").top_k(queries, BEST, temperature=1.0, epsilon=0.3)
        print(f"the same after loading: {np.array_equal(best.ids, again.ids)}")


if __name__ == "__main__":
    main()
