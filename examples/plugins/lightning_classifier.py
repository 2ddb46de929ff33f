"""Train 5,000 classes with Lightning: the module computes the loss, a callback keeps its sampler up to date."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss
from softindex.train.plugins.lightning import RefreshCallback

CLASSES, DIM, EXAMPLES, BATCH = 5_000, 32, 8_192, 256


class Classifier(pl.LightningModule):
    """A linear encoder and a large output layer."""

    def __init__(self):
        super().__init__()
        self.encoder, self.layer = nn.Linear(DIM, DIM), nn.Linear(DIM, CLASSES)
        self.loss = SampledSoftmaxLoss(MIDXSampler(CLASSES, codewords=32, residual="weighted"), draws=50)

    def training_step(self, batch, _):
        """Draw 50 classes for each example."""
        features, targets = batch
        return self.loss(self.encoder(features), targets, self.layer)

    def configure_optimizers(self):
        """One optimiser for both layers."""
        return torch.optim.Adam([*self.encoder.parameters(), *self.layer.parameters()], lr=0.01)


def main():
    """Train six epochs, then measure with the full softmax."""
    pl.seed_everything(0, verbose=False)
    features = torch.randn(EXAMPLES, DIM)
    targets = (features @ torch.randn(DIM, CLASSES)).argmax(1)
    batches = DataLoader(TensorDataset(features, targets), batch_size=BATCH, shuffle=True)

    module = Classifier()
    frequencies = torch.bincount(targets, minlength=CLASSES)
    with Refresher(module.loss.sampler, module.layer, frequencies=frequencies, steps=50) as refresher:
        trainer = pl.Trainer(
            max_epochs=6,
            accelerator="cpu",
            callbacks=[RefreshCallback(refresher, module.loss)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, batches)
    with torch.no_grad():
        full = nn.functional.cross_entropy(module.layer(module.encoder(features)), targets)
    print(f"cross-entropy over all {CLASSES:,} classes: {full.item():.3f}")


if __name__ == "__main__":
    main()
