"""The loss inside the SASRec and BERT4Rec of RecTools."""

import pickle

import pytest
import torch

from tests.plugins.running import printed_by

pytest.importorskip("rectools.models.nn.transformers", reason="RecTools is not installed: make test-plugins")
# Deprecations inside the libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

USERS, ITEMS, LENGTH = 30, 40, 8


def dataset():
    import numpy as np
    import pandas as pd
    from rectools import Columns
    from rectools.dataset import Dataset

    random = np.random.default_rng(0)
    rows = [
        (user, 100 + item, 1.0, pd.Timestamp(2024, 1, 1 + day))
        for user in range(USERS)
        for day, item in enumerate(random.choice(ITEMS, LENGTH, replace=False))
    ]
    columns = [Columns.User, Columns.Item, Columns.Weight, Columns.Datetime]
    return Dataset.construct(pd.DataFrame(rows, columns=columns))


def trainer():
    from pytorch_lightning import Trainer

    return Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip


def last_taken(interactions):
    """Mask of each user's last interaction, for the validation."""
    return (interactions.groupby("user_id").cumcount(ascending=False) == 0).values


def fitted(kind="SASRecModel", sampler="midx", draws=10, **others):
    import rectools.models

    from softindex.train.plugins.rectools import LOSS, SampledTransformerModule

    torch.manual_seed(0)
    model = getattr(rectools.models, kind)(
        n_blocks=1, n_heads=2, n_factors=8, session_max_len=LENGTH, batch_size=8, dropout_rate=0.0,
        loss=LOSS, lightning_module_type=SampledTransformerModule,
        lightning_module_kwargs={"sampler": sampler, "draws": draws, "refresh_steps": 2},
        get_trainer_func=trainer, recommend_torch_device="cpu", **others,
    )  # fmt: skip
    return model.fit(dataset())


@pytest.mark.parametrize("distance", ["dot", "cosine"])
def test_the_loss_estimates_the_cross_entropy_over_the_items(distance):
    model = fitted(sampler="uniform", draws=4000, similarity_module_kwargs={"distance": distance})
    module = model.lightning_model.eval()
    batch = next(iter(model.data_preparator.get_dataloader_train()))
    found = module._calc_custom_loss(batch, 0)
    # RecTools' logits, without the padding token, for the positions that have a target.
    logits, targets = module.torch_model(batch)[..., 1:], batch["y"] - 1
    full = torch.nn.functional.cross_entropy(logits[targets >= 0], targets[targets >= 0])
    assert found.item() == pytest.approx(full.item(), abs=0.02)


def test_the_sampler_is_refreshed_before_the_first_step_and_when_due():
    model = fitted()
    module = model.lightning_model
    # Four batches of eight users, a refresh after every second.
    assert module._watch.refresher.refreshes == 1 + 2
    assert module.sampled_loss.sampler.num_items == len(model.data_preparator.get_known_item_ids())


@pytest.mark.parametrize("kind", ["SASRecModel", "BERT4RecModel"])
@pytest.mark.parametrize("sampler", ["midx", "two-level", "uniform"])
def test_it_recommends_with_every_sampler(kind, sampler):
    found = fitted(kind, sampler).recommend(users=[0, 1], dataset=dataset(), k=3, filter_viewed=True)
    assert len(found) == 6
    assert found["item_id"].between(100, 100 + ITEMS - 1).all()


def test_a_validation_loss_is_reported_and_a_saved_model_recommends_the_same():
    model = fitted(get_val_mask_func=last_taken)
    assert torch.isfinite(model.fit_trainer.callback_metrics["val_loss"])
    again = pickle.loads(pickle.dumps(model))
    asked = {"users": [0, 1, 2], "dataset": dataset(), "k": 3, "filter_viewed": True}
    assert again.recommend(**asked).equals(model.recommend(**asked))


def test_an_unknown_sampler_is_refused():
    from softindex.errors import InputError

    with pytest.raises(InputError, match="expected one of midx, two-level, uniform"):
        fitted(sampler="none")


def test_the_example_learns(tmp_path):
    line = printed_by("recommend_films.py", tmp_path)
    assert int(line.split(": ")[1].split("%")[0]) > 40
