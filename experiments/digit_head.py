"""Train a digit classifier, and measure AdaptiveSoftmax on its last layer, as Baharav et al. (2024) did.

    python -m experiments.digit_head --data mnist.npz --page docs/benchmarks.md

The network has 32 filters of 5 x 5 with ReLU, and a layer of 10 classes over their 25,088 outputs.  mnist.npz holds
x_train, y_train, x_test and y_test.  Without --data, a few blurred strokes stand in for digits.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import Table, place
from experiments.harness.heads import CONFIDENCE, EPSILON, measure, plain
from softindex import AdaptiveSoftmax
from softindex.evaluate.timing import take_turns

SIDE, FILTERS, WINDOW, CLASSES = 28, 32, 5, 10
BATCH, RATE, MOMENTUM = 100, 0.05, 0.9
CALIBRATION = 200
"""Images to calibrate with."""


def load(path):
    """Images (m, 1, 28, 28) from 0 to 1 and labels (m,), for training and for testing."""
    if path is not None:
        with np.load(path) as data:
            parts = [data[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    else:
        rng = np.random.default_rng(0)
        strokes, labels = rng.random((CLASSES, SIDE, SIDE)) > 0.85, rng.integers(CLASSES, size=1000)
        images = 255 * np.clip(0.8 * strokes[labels] + 0.25 * rng.standard_normal((1000, SIDE, SIDE)), 0, 1)
        parts = [images[:600], labels[:600], images[600:], labels[600:]]
    images = [torch.from_numpy((part / 255).astype(np.float32)).reshape(-1, 1, SIDE, SIDE) for part in parts[::2]]
    labels = [torch.from_numpy(part.astype(np.int64)) for part in parts[1::2]]
    return images[0], labels[0], images[1], labels[1]


class Network(nn.Module):
    """Filters with ReLU, and a layer of classes over them."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv2d(1, FILTERS, WINDOW, padding=WINDOW // 2)
        self.head = nn.Linear(FILTERS * SIDE * SIDE, CLASSES)

    def features(self, images):
        """(m, 25088)"""
        return torch.relu(self.filters(images)).flatten(1)

    def forward(self, images):
        """Logits (m, 10)."""
        return self.head(self.features(images))


def train(network, images, labels, epochs):
    """Stochastic gradient descent on the cross-entropy."""
    descent = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(BATCH):
            descent.zero_grad()
            functional.cross_entropy(network(images[rows]), labels[rows]).backward()
            descent.step()


def plain_batch(weights, bias, queries):
    """Probabilities (b, n) in float32: one product for all queries."""
    logits = queries @ weights.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def against_numpy(weights, bias, queries, batch=100):
    """A table of pac against NumPy alone, with one query and with many in a call."""
    soft, rows = AdaptiveSoftmax(weights, bias), []
    options = {"temperature": 1.0, "epsilon": EPSILON, "confidence": CONFIDENCE, "guarantee": "pac", "threads": 1}
    pac, one = partial(soft.top_k, k=1, **options), partial(plain, weights, bias)
    loop, product = lambda part: [one(query) for query in part], partial(plain_batch, weights, bias)
    parts = [queries[begin : begin + batch] for begin in range(0, len(queries), batch)]
    for said, ways, given, count in (
        ("one", {"a product": one, "pac": pac}, queries, 1),
        (str(batch), {"a product for each": loop, "one product": product, "pac": pac}, parts, batch),
    ):
        take_turns(ways, given[:2])
        taken = take_turns(ways, given, clock=time.process_time)
        medians = {way: float(np.median(seconds)) / count for way, seconds in taken.items()}
        rows += [[said, way, f"{each * 1e6:.1f}", f"{each / medians['pac']:.2f}"] for way, each in medians.items()]
    return Table(
        "pac against NumPy alone: microseconds of processor time per query (medians, one thread, in turns), and how "
        "many times as long as pac",
        ["queries in a call", "how", "microseconds", "relative to pac"],
        rows,
    )


@torch.no_grad()
def report(network, images, labels, epochs):
    """A sentence on what was trained, and tables of the head on test images."""
    seen = network.features(images).numpy()
    right = (network(images).argmax(dim=1) == labels).float().mean()
    tables = measure(
        network.head.weight.numpy(),
        network.head.bias.numpy(),
        seen[:CALIBRATION],
        seen[CALIBRATION:],
        names=("digits", "images"),
    )
    tables.append(against_numpy(network.head.weight.numpy(), network.head.bias.numpy(), seen[CALIBRATION:]))
    said = (
        f"Weights after {epochs} epochs of the training images; {right:.1%} of {len(labels)} test images right; "
        f"{(seen != 0).mean():.0%} of the features are not zero."
    )
    return "\n\n".join([said, *(table.markdown() for table in tables)])


def main():
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="mnist.npz")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--queries", type=int, default=1000, help="test images to measure with")
    parser.add_argument("--page", type=Path, help="Markdown page to write the tables into")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels, test_images, test_labels = load(options.data)
    network, count = Network(), CALIBRATION + options.queries
    train(network, images, labels, options.epochs)
    body = report(network, test_images[:count], test_labels[:count], options.epochs)
    print(body)
    if options.page is not None:
        place(options.page, "digit-head", body)


if __name__ == "__main__":
    main()
