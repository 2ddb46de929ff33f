"""Train a model with a large output layer from 50 sampled classes per example instead of all 5,000.

A MIDX sampler draws the negatives, SampledSoftmaxLoss corrects for them, and a Refresher keeps the sampler close to the
layer while it trains.
"""

import torch
from torch import nn

from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss, diagnose

CLASSES, DIM, EXAMPLES, BATCH, STEPS = 5_000, 32, 8_192, 256, 200


def main():
    """Train, then compare with the full softmax."""
    torch.manual_seed(0)
    truth = torch.randn(CLASSES, DIM)
    features = torch.randn(EXAMPLES, DIM)
    targets = (features @ truth.T).argmax(1)

    encoder, layer = nn.Linear(DIM, DIM), nn.Embedding(CLASSES, DIM)
    optimiser = torch.optim.Adam([*encoder.parameters(), *layer.parameters()], lr=0.01)
    frequencies = torch.bincount(targets, minlength=CLASSES)

    sampler = MIDXSampler(CLASSES, codewords=32, residual="weighted")
    sampler.refresh(layer, frequencies=frequencies, queries=encoder(features[:512]))
    loss = SampledSoftmaxLoss(sampler, draws=50)

    with Refresher(sampler, layer, frequencies=frequencies, steps=50, background=False) as refresher:
        for step in range(STEPS):
            rows = torch.randint(EXAMPLES, (BATCH,))
            queries = encoder(features[rows])
            value = loss(queries, targets[rows], layer)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            refresher.step(queries)
            if step % 50 == 0:
                print(f"step {step}: sampled loss {value.item():.3f}, effective draws {loss.effective.item():.0%}")

    with torch.no_grad():
        # The loss samples in evaluation mode too, so measure with the full softmax.
        queries = encoder(features)
        full = nn.functional.cross_entropy(queries @ layer.weight.T, targets)
        print(f"cross-entropy over all {CLASSES:,} classes: {full.item():.3f}")
    print(diagnose(sampler, queries[:128], layer, positives=targets[:128]))


if __name__ == "__main__":
    main()
