"""Find the most probable classes of a large output layer from a fraction of its multiplications.

AdaptiveSoftmax reads a layer once, then answers queries with a guarantee: "deterministic" is always right, "pac" is
right with the confidence that you choose.
"""

import numpy as np

from softindex import AdaptiveSoftmax

CLASSES, DIM, QUERIES = 2_000, 4_096, 50


def main():
    """Compare the answers with the full layer."""
    rng = np.random.default_rng(0)
    layer = rng.standard_normal((CLASSES, DIM), dtype=np.float32) / np.float32(np.sqrt(DIM))
    # Each query points towards a few classes, as the last hidden state of a trained model does.
    nearest = rng.integers(CLASSES, size=QUERIES)
    queries = 12 * layer[nearest] + 0.5 * rng.standard_normal((QUERIES, DIM), dtype=np.float32)
    logits = queries.astype(np.float64) @ layer.T.astype(np.float64)
    true_best = logits.argmax(axis=1)

    head = AdaptiveSoftmax(layer)
    for guarantee in ("deterministic", "pac"):
        best = head.top_k(queries, 1, temperature=1.0, guarantee=guarantee, epsilon=0.3, confidence=0.95)
        right = np.mean(best.ids[:, 0] == true_best)
        saved = layer.size / best.multiplications.mean()
        print(f"{guarantee}: best class right {right:.0%}, {saved:.1f} times fewer multiplications")
        print(f"  first query: class {best.ids[0, 0]}, probability {np.exp(best.log_prob[0, 0]):.4f}")


if __name__ == "__main__":
    main()
