"""The callback, in the Trainer of Lightning under both of its names."""

import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss
from tests.plugins.running import printed_by

pytest.importorskip("pytorch_lightning", reason="Lightning is not installed: make test-plugins")
# Deprecations inside the libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES, DIM, BATCHES = 300, 8, 12


def fit(package, folder, **when):
    """Train two epochs; return the Refresher and the module."""
    pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    callback = importlib.import_module(f"softindex.train.plugins.{package}").RefreshCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, CLASSES)
            self.loss = SampledSoftmaxLoss(MIDXSampler(CLASSES, codewords=8), draws=10)

        def training_step(self, batch, _):
            return self.loss(*batch, self.layer)

        def validation_step(self, batch, _):
            return self.loss(*batch, self.layer)

        def configure_optimizers(self):
            return torch.optim.Adam(self.layer.parameters())

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(BATCHES * 16, DIM), torch.randint(CLASSES, (BATCHES * 16,)))
    module = Module()
    refresher = Refresher(module.loss.sampler, module.layer, background=False, **when)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback(refresher, module.loss)],
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(data, 16), DataLoader(data, 64))
    return refresher, module, trainer


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning"])
@pytest.mark.parametrize(("when", "due"), [({"steps": 8}, 3), ({"epochs": 1}, 2), ({"steps": 100}, 0)])
def test_the_sampler_is_refreshed_before_the_first_step_and_when_due(package, when, due, tmp_path):
    pytest.importorskip(package, reason="this name of Lightning is not installed")
    refresher, _, _ = fit(package, tmp_path, **when)
    assert refresher.refreshes == 1 + due


def test_a_checkpoint_holds_the_tables(tmp_path):
    _, module, trainer = fit("pytorch_lightning", tmp_path, steps=8)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    state = torch.load(tmp_path / "saved.ckpt", weights_only=False)["state_dict"]
    again = SampledSoftmaxLoss(MIDXSampler(CLASSES, codewords=8), draws=10)
    again.load_state_dict({name[5:]: value for name, value in state.items() if name.startswith("loss.")})
    queries, ids = torch.randn(4, DIM), torch.arange(CLASSES)
    assert torch.equal(again.sampler.log_q(queries, ids), module.loss.sampler.log_q(queries, ids))


def test_the_example_learns(tmp_path):
    pytest.importorskip("lightning", reason="the example imports Lightning by its newer name")
    # Guessing among 5,000 classes has a cross-entropy of 8.5.
    assert float(printed_by("lightning_classifier.py", tmp_path).split(": ")[1]) < 4
