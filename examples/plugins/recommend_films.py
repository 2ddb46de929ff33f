"""Train the SASRec of RecTools with a sampled softmax whose draws are corrected, and recommend."""

import numpy as np
import pandas as pd
from pytorch_lightning import Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

from softindex.train.plugins.rectools import LOSS, SampledTransformerModule

USERS, ITEMS, LENGTH = 400, 300, 12


def made_up():
    """Users who take items of one kind one after the other; there are ten kinds."""
    random = np.random.default_rng(0)
    kind = np.arange(ITEMS) % 10
    rows = []
    for user in range(USERS):
        mine = np.flatnonzero(kind == random.integers(10))
        taken = random.choice(mine, LENGTH, replace=False)
        rows.extend((user, 1000 + item, 1.0, pd.Timestamp(2024, 1, 1 + day)) for day, item in enumerate(taken))
    return pd.DataFrame(rows, columns=[Columns.User, Columns.Item, Columns.Weight, Columns.Datetime])


def trainer():
    """How RecTools trains: few epochs, no files."""
    return Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
                   enable_progress_bar=False, enable_model_summary=False)  # fmt: skip


def main():
    """Recommend five items to each user, and count those of the user's kind."""
    interactions = made_up()
    dataset = Dataset.construct(interactions)
    model = SASRecModel(
        n_blocks=1, n_heads=2, n_factors=32, session_max_len=LENGTH, batch_size=64, lr=0.01,
        loss=LOSS,
        lightning_module_type=SampledTransformerModule,
        lightning_module_kwargs={"sampler": "midx", "draws": 30, "refresh_steps": 10},
        get_trainer_func=trainer,
        recommend_torch_device="cpu",
    )  # fmt: skip
    model.fit(dataset)
    users = interactions[Columns.User].unique()
    found = model.recommend(users=users, dataset=dataset, k=5, filter_viewed=True)
    kind_of = interactions.groupby(Columns.User)[Columns.Item].first() % 10
    share = (found[Columns.Item] % 10 == found[Columns.User].map(kind_of)).mean()
    print(f"recommended items of the user's kind: {share:.0%} (10% by chance)")


if __name__ == "__main__":
    main()
