"""Train the last layer of a digit classifier, and find its best class with fewer multiplications.

    python examples/mnist_head.py --data mnist.npz

mnist.npz holds x_train, y_train, x_test and y_test.  Without --data the script makes up digits: blurred strokes, not
MNIST.  Features are 32 random filters of 5 x 5 on 28 x 28 pixels, 25,088 in all, as many as in the published network;
the layer over them is trained by stochastic gradient descent.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from softindex import AdaptiveSoftmax

SIDE, FILTERS, WINDOW = 28, 32, 5


def load(path, rng):
    """Images scaled to 0 .. 1 and labels, for training and for testing."""
    if path is not None:
        with np.load(path) as data:
            parts = [data[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        return [part.reshape(-1, SIDE, SIDE) / np.float32(255) if part.ndim > 1 else part for part in parts]
    strokes = rng.random((10, SIDE, SIDE), dtype=np.float32) > 0.85
    labels = rng.integers(10, size=900)
    images = np.clip(strokes[labels] * 0.8 + 0.25 * rng.standard_normal((900, SIDE, SIDE), dtype=np.float32), 0, 1)
    images = images.astype(np.float32)
    return images[:600], labels[:600], images[600:], labels[600:]


def features(images, filters):
    """(b, 25088): responses of the filters at every pixel, where positive."""
    edge = WINDOW // 2
    wide = np.pad(images, ((0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (WINDOW, WINDOW), axis=(1, 2))
    seen = windows.reshape(len(images), SIDE * SIDE, WINDOW * WINDOW) @ filters
    return np.maximum(seen, 0).reshape(len(images), -1)


def train(images, labels, filters, rng, epochs):
    """The weights (10, d) of the layer, by gradient descent on the cross-entropy."""
    weights = np.zeros((10, SIDE * SIDE * FILTERS), np.float32)
    for epoch in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order), 100):
            rows = order[start : start + 100]
            seen = features(images[rows], filters)
            logits = seen @ weights.T
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            chances[np.arange(len(rows)), labels[rows]] -= 1
            weights -= 0.02 / (1 + epoch) * chances.T @ seen / len(rows)
    return weights


def seconds_each(answer, queries):
    """Processor time per query, after one to warm up."""
    answer(queries[0])
    begin = time.process_time()
    for query in queries:
        answer(query)
    return (time.process_time() - begin) / len(queries)


def plain(weights, query):
    """The probabilities of all classes."""
    logits = weights @ query
    chances = np.exp(logits - logits.max())
    return chances / chances.sum()


def main():
    """Train, and count how often and how cheaply the best class is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="mnist.npz")
    parser.add_argument("--images", type=int, default=10_000, help="images to train with")
    parser.add_argument("--queries", type=int, default=1000, help="test images to classify")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    train_images, train_labels, test_images, test_labels = load(options.data, rng)
    filters = rng.standard_normal((WINDOW * WINDOW, FILTERS), dtype=np.float32) / WINDOW
    weights = train(train_images[: options.images], train_labels[: options.images], filters, rng, options.epochs)
    seen = features(test_images[: options.queries], filters)
    labels = test_labels[: options.queries]
    logits = seen.astype(np.float64) @ weights.T.astype(np.float64)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    print(f"accuracy of the layer: {(logits.argmax(axis=1) == labels).mean():.1%} of {len(labels)} test images")
    layer = AdaptiveSoftmax(weights)
    for confidence in (0.9, 0.95, 0.99):
        found = layer.top_k(seen, 1, temperature=1.0, guarantee="pac", epsilon=0.3, confidence=confidence)
        best = chances.argmax(axis=1)
        near = np.abs(np.exp(found.log_prob[:, 0]) / chances[np.arange(len(best)), best] - 1) <= 0.3
        right = (found.ids[:, 0] == best) & near
        gain = weights.size / found.multiplications.mean()
        scanned = (found.guarantee == "exact").mean()
        options = {"temperature": 1.0, "guarantee": "pac", "confidence": confidence, "threads": 1}
        ours = seconds_each(lambda query, options=options: layer.top_k(query, 1, **options), seen[:100])
        numpy = seconds_each(lambda query: plain(weights, query), seen[:100])
        print(
            f"confidence {confidence}: right {right.mean():.1%}, {gain:.1f} times fewer multiplications, "
            f"{scanned:.0%} scored in full, {1e6 * ours:.0f} us against {1e6 * numpy:.0f} us of NumPy"
        )


if __name__ == "__main__":
    main()
