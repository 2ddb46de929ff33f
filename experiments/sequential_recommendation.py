"""Train SASRec to recommend the next item with the full softmax and with sampled softmaxes, and compare rankings.

    python -m experiments.sequential_recommendation --data Beauty.txt.gz --seeds 3 --out runs/recommendation

A line of the file is a user number, then the numbers of the user's items in order of time.  The last item of each user
is for testing and the one before it for validation.  All items are ranked, except those the user already took.  Without
--data synthetic sequences are used.  Repeat the command to continue an interrupted run.  Results of several commands
add up in one directory.
"""

from pathlib import Path

import torch

from experiments.harness import costs
from experiments.harness.command import Task, add_settings, parser_of, perform, rated, replaced
from experiments.harness.encoders import PADDING
from experiments.harness.methods import LEARNED, METHODS, IndexSize, LearnedObjective, Objective, due
from experiments.harness.sasrec import SASRec
from experiments.harness.sequences import SequenceTrainer, load_sequences

PUBLISHED = {
    "width": 64, "blocks": 2, "heads": 2, "length": 20, "dropout": 0.4, "batch": 64, "draws": 50, "rate": 2e-3,
    "refresh": 20,
}  # fmt: skip
SMALL = PUBLISHED | {"width": 16, "blocks": 1, "length": 10, "dropout": 0.1, "rate": 1e-2}
PLOTTED = ("full", "uniform", "unigram", "in-batch", "sce", "midx-rq", "midx-beyond", "two-level-sd")
REPLACEABLE = {"draws": int, "rate": float, "refresh": int}
"""Settings that the command line may replace."""
METRICS = {
    f"{metric}@{k}": (f"{title}@{k}", ".4f")
    for metric, title in (("ndcg", "NDCG"), ("recall", "Recall"))
    for k in (10, 50)
}


class Recommender(SequenceTrainer):
    """SASRec with the full softmax or a sampled one over the items."""

    def __init__(self, taken, items, settings, method, seed, *, codewords, codebooks=2):
        super().__init__(taken, items, settings, seed)
        shape = {name: settings[name] for name in ("width", "blocks", "heads", "length", "dropout")}
        self.model = SASRec(items, **shape)
        name, multiple = rated(method)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=multiple * settings["rate"])
        self.refresh = settings["refresh"]
        if name == LEARNED:
            self.objective = LearnedObjective(items, settings["width"], settings["draws"], codewords)
            self.optimiser.add_param_group({"params": list(self.objective.parameters())})
        else:
            size = IndexSize.refreshed(self.refresh, codewords, codebooks)
            self.objective = Objective(name, self.frequencies, settings["draws"], size)

    def step(self, epoch, place):
        """Train on the next windows."""
        self.model.train()
        if due(epoch * self.steps + place, self.refresh):
            self.refresh_objective()
        return self.descend(self.objective(*self.loss_inputs(epoch, place)))

    def refresh_objective(self):
        """Refresh the sampler, if there is one."""
        self.objective.refresh(self.model.items.weight)

    def loss_inputs(self, epoch, place):
        """Queries, targets and items of the next windows."""
        inputs, targets = self.examples(epoch, place)
        wanted = targets != PADDING
        return self.model(inputs)[wanted], targets[wanted], self.model.items.weight

    def scores(self, sequences):
        """Scores (b, n) of all items as the next item of padded sequences (b, length)."""
        return self.model(sequences)[:, -1] @ self.model.items.weight.T

    def metrics(self, ranks):
        """NDCG and recall, from the ranks (b,), counted from 0, of the wanted items."""
        gains = 1 / torch.log2(ranks + 2)
        return {
            name: float((gain * (ranks < k)).mean())
            for k in (10, 50)
            for name, gain in ((f"ndcg@{k}", gains), (f"recall@{k}", torch.ones_like(gains)))
        }


def main():
    """Compare the methods."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    costs.add_option(parser)
    add_settings(parser, REPLACEABLE)
    options = parser.parse_args()
    taken, items, name = load_sequences(options.data)
    settings = replaced(SMALL if options.data is None else PUBLISHED, options, REPLACEABLE)
    codewords = 8 if options.data is None else 64
    task = Task(
        name="sequential-recommendation",
        title=f"Sequential recommendation, {name}",
        settings={"users": len(taken), "items": items, **settings},
        make=lambda method, seed: Recommender(taken, items, settings, method, seed, codewords=codewords),
        metrics=METRICS,
        chosen_by="ndcg@10",
        lower_is_better=False,
        methods=METHODS | {LEARNED: "MIDX, learned codebooks"},
        plotted=PLOTTED,
    )
    perform(task, options, options.epochs or (3 if options.data is None else 12))


if __name__ == "__main__":
    main()
