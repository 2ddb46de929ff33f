"""Train sequence encoders with dot products and mixtures of logits, compare rankings, and search a mixture's index.

    python -m experiments.learned_similarity --data Beauty.txt.gz --out runs/similarity --page page.md

A line of the file is a user number, then the numbers of the user's items in order of time.  The last item of each user
is for testing and the one before it for validation.  All items are ranked, except those the user already took.  Without
--data synthetic sequences are used.  A method is an encoder, sasrec or hstu, with a similarity of queries and items:

- dot: the dot product; cosine: of normalised vectors, divided by a temperature of 0.05.
- mol: a mixture of the logits of 4 x 4 components, with the loss that balances them; mol-plain: without that loss;
  mol-tied: with that loss, one projection for the components of both sides, and a gate that learns slowly;
  mol-constant: the same with a gate that does not learn.

All are trained with a sampled softmax.  --negatives own (default with --data) draws for each query, which covers more
items and needs fewer draws; --negatives shared (default without) draws once per batch, so that all similarities are one
matrix product.  At the end an index is built from the first mixture of logits in the directory, and searched with every
method.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import check_place
from experiments.harness import retrieving
from experiments.harness.command import Task, compare, parser_of
from experiments.harness.encoders import PADDING
from experiments.harness.hstu import HSTU
from experiments.harness.results import read as read_runs
from experiments.harness.runs import Run
from experiments.harness.sasrec import SASRec
from experiments.harness.sequences import SequenceTrainer, load_sequences, pad
from experiments.harness.tied import TiedMixture
from softindex.mol import DotProduct, MixtureOfLogits, build, mutual_information_loss
from softindex.train import UniformSampler, UnigramSampler, sampled_cross_entropy

ENCODERS = {"sasrec": ("SASRec", SASRec), "hstu": ("HSTU", HSTU)}
SIMILARITIES = {
    "dot": "dot product",
    "cosine": "cosine",
    "mol": "mixture of logits",
    "mol-plain": "mixture of logits, not balanced",
    "mol-tied": "mixture of logits, tied",
    "mol-constant": "mixture of logits, tied, constant gate",
}
METHODS = {
    f"{encoder}-{similarity}": f"{name}, {title}"
    for encoder, (name, _) in ENCODERS.items()
    for similarity, title in SIMILARITIES.items()
}
DEFAULT_METHODS = (
    *(f"sasrec-{similarity}" for similarity in SIMILARITIES),
    "hstu-dot",
    "hstu-mol",
    "hstu-mol-constant",
)
SAMPLERS = {"uniform": UniformSampler, "unigram": UnigramSampler}

PUBLISHED = {
    "width": 64, "blocks": 2, "heads": 2, "length": 20, "dropout": 0.2, "components": 4, "component width": 32,
    "batch": 64, "draws": 64, "negatives": "own", "sampler": "unigram", "rate": 2e-3, "item rate": 8e-3,
    "gate rate": 2e-5, "validated": 2000,
}  # fmt: skip
SMALL = PUBLISHED | {
    "width": 16, "blocks": 1, "length": 10, "dropout": 0.1, "components": 2, "component width": 8, "batch": 32,
    "draws": 64, "negatives": "shared", "sampler": "uniform", "rate": 1e-2, "item rate": 1e-2,
    "gate rate": 1e-3,
}  # fmt: skip
TEMPERATURE = 0.05
BALANCE = 0.001
"""Weight of the loss that balances the components."""
USERS, ITEMS = 32, 1024
"""Users and items scored at once: the gate's intermediate results then fit into the cache."""
PAIRS = 1 << 15
"""Pairs of query and draw scored at once: larger tensors are slow to allocate."""
SEARCHED = 2000
"""Users for whom searches are compared."""


class Model(nn.Module):
    """A sequence encoder, and the similarity of its queries and items."""

    def __init__(self, encoder, similarity):
        super().__init__()
        self.encoder, self.similarity = encoder, similarity

    def by_rate(self):
        """Parameters by the name of their learning rate.

        A step turns a long vector less than a short one, so items whose length does not matter need a higher rate.  A
        gate that learns as fast as the components of a tied mixture ruins them: see the page of results.
        """
        items = [self.encoder.items.weight]
        gate = list(self.similarity.mixture.parameters()) if isinstance(self.similarity, TiedMixture) else []
        special = {id(weights) for weights in [*items, *gate]}
        others = [weights for weights in self.parameters() if id(weights) not in special]
        groups = {"rate": others, "item rate": items, "gate rate": gate}
        return {rate: weights for rate, weights in groups.items() if weights}

    def queries(self, sequences):
        """Queries (b, d) for the next item of padded sequences (b, length)."""
        return self.encoder(sequences)[:, -1]

    def pair_scorer(self):
        """A function of queries (b, d) and ids (b, m) that returns their similarities (b, m).

        There are more draws than items, so the parts that do not depend on the query are computed once for all items.
        """
        items, similarity = self.encoder.items, self.similarity
        if isinstance(similarity, DotProduct):
            return lambda queries, ids: similarity(queries, items(ids))
        components, gates = similarity.encode_items(items.weight)

        def score(queries, ids):
            mine = functional.embedding(ids, components.flatten(1)).unflatten(-1, components.shape[1:])
            own = None if gates is None else functional.embedding(ids, gates)
            return similarity.combine(*similarity.encode_queries(queries), mine, own)

        return score

    def scores(self, queries):
        """Scores (b, n) of all items."""
        parts = self.encoder.items.weight.split(ITEMS)
        return torch.cat([self.similarity(queries, part) for part in parts], dim=1)


def model_of(method, items, settings):
    """A new model for a method."""
    encoder, similarity = method.split("-", 1)
    shape = {name: settings[name] for name in ("width", "blocks", "heads", "length", "dropout")}
    width = settings["width"]
    if similarity == "dot":
        layer = DotProduct(width)
    elif similarity == "cosine":
        layer = DotProduct(width, temperature=TEMPERATURE, normalised=True)
    else:
        count, size = settings["components"], {"component_dim": settings["component width"], "temperature": TEMPERATURE}
        if similarity in ("mol-tied", "mol-constant"):
            layer = TiedMixture(width, components=count, learn_gate=similarity == "mol-tied", **size)
        else:
            layer = MixtureOfLogits(width, width, query_components=count, item_components=count, **size)
    return Model(ENCODERS[encoder][1](items, **shape), layer)


class SimilarityTrainer(SequenceTrainer):
    """Trains an encoder and a similarity with a softmax over drawn items."""

    users_at_once = USERS

    def __init__(self, taken, items, settings, method, seed):
        super().__init__(taken, items, settings, seed)
        # Some users, evenly spread over the file, are enough to select an epoch.
        self.validated = self.taken[:: max(1, len(self.taken) // settings["validated"])]
        self.draws, self.shared = settings["draws"], settings["negatives"] == "shared"
        self.balance = BALANCE if method.endswith(("-mol", "-mol-tied")) else 0.0
        self.model = model_of(method, items, settings)
        self.optimiser = torch.optim.Adam(
            [{"params": weights, "lr": settings[rate]} for rate, weights in self.model.by_rate().items()]
        )
        self.objective = SAMPLERS[settings["sampler"]](items)
        self.objective.refresh(frequencies=self.frequencies)

    def step(self, epoch, place):
        """Train on the next windows."""
        self.model.train()
        inputs, targets = self.examples(epoch, place)
        wanted = targets != PADDING
        return self.descend(self.loss(self.model.encoder(inputs)[wanted], targets[wanted]))

    def loss(self, queries, targets):
        """Mean loss of queries (b, d) with targets (b,)."""
        items, similarity, extra = self.model.encoder.items, self.model.similarity, 0.0
        target_items = items(targets[:, None])
        if self.balance:
            positive, weights = similarity(queries, target_items, with_weights=True)
            extra = self.balance * mutual_information_loss(weights)
        else:
            positive = similarity(queries, target_items)
        drawn = self.objective.sample(queries, self.draws, shared=self.shared)
        rows = max(1, PAIRS // self.draws)
        if self.shared:
            vectors = items(drawn.ids)
            negative = torch.cat([similarity(part, vectors) for part in queries.split(rows)])
        else:
            parts = zip(queries.split(rows), drawn.ids.split(rows), strict=True)
            score = self.model.pair_scorer()
            negative = torch.cat([score(part, ids) for part, ids in parts])
        losses, _ = sampled_cross_entropy(positive, negative, targets[:, None], drawn)
        return losses.mean() + extra

    def scores(self, sequences):
        """Scores (b, n) of all items as the next item of padded sequences (b, length)."""
        return self.model.scores(self.model.queries(sequences))

    def metrics(self, ranks):
        """Hit rates, NDCG and mean reciprocal rank, from the ranks (b,), counted from 0, of the wanted items."""
        metrics = {f"hr@{k}": (ranks < k).double().mean() for k in (1, 10, 50, 200)}
        metrics["ndcg@10"] = ((ranks < 10) / torch.log2(ranks + 2)).mean()
        metrics["mrr"] = (1 / (ranks + 1)).mean()
        return {name: float(value) for name, value in metrics.items()}

    @torch.no_grad()
    def searchable(self):
        """An index of the items; queries of some users, their items, and their next items."""
        self.model.eval()
        some = self.taken[:: max(1, len(self.taken) // SEARCHED)]
        before = [sequence[:-1] for sequence in some]
        index = build(self.model.similarity, self.model.encoder.items.weight.detach())
        queries = self.model.queries(pad(before, self.length))
        if isinstance(self.model.similarity, TiedMixture):
            queries, _ = self.model.similarity.encode_queries(queries)
        return index, queries.numpy(), before, np.array([sequence[-1] for sequence in some])


def search(task, options):
    """Compare the search methods on the first run in the directory that trained a mixture of logits."""
    runs = [run for method, group in read_runs(task, options.out).items() if "mol" in method for run in group]
    if not runs:
        return
    method, seed = runs[0]["method"], runs[0]["seed"]
    trainer, progress = Run(task, method, seed, options.out).resume()
    trainer.model.load_state_dict(progress.best)
    index, queries, seen, wanted = trainer.searchable()
    measured = retrieving.measure(index, queries, seen, wanted, options.threads)
    title = f"{METHODS[method]}: {len(index):,} items, {len(queries):,} queries"
    retrieving.publish(measured, title, sections_of(task)[1], options.page)


def sections_of(task):
    """Names of the page sections for the comparison of methods and of searches."""
    return task.name, f"{task.name}-retrieval"


def options_of():
    """The command line; its training options become part of the settings."""
    parser = parser_of(__doc__, DEFAULT_METHODS)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    parser.add_argument("--sampler", choices=SAMPLERS, help="sampler of the negatives")
    parser.add_argument("--negatives", choices=("shared", "own"), help="draw once per batch, or for each query")
    parser.add_argument("--draws", type=int, help="number of negatives")
    parser.add_argument("--batch", type=int, help="windows per step")
    parser.add_argument("--rate", type=float, help="learning rate")
    parser.add_argument("--item-rate", type=float, help="learning rate of the item vectors")
    parser.add_argument("--gate-rate", type=float, help="learning rate of the gate of a tied mixture")
    parser.add_argument("--dropout", type=float, help="dropout of the encoder")
    parser.add_argument("--width", type=int, help="dimensions of query and item vectors")
    parser.add_argument("--components", type=int, help="components per query and per item of a mixture")
    parser.add_argument("--component-width", type=int, help="dimensions of a component")
    return parser.parse_args()


def task_of(options):
    """The experiment that a command line describes."""
    taken, items, name = load_sequences(options.data)
    settings = dict(SMALL if options.data is None else PUBLISHED)
    for setting in settings:
        chosen = getattr(options, setting.replace(" ", "_"), None)
        settings[setting] = settings[setting] if chosen is None else chosen
    return Task(
        name="learned-similarity",
        title=f"Learned similarities, {name}",
        settings={"users": len(taken), "items": items, **settings},
        make=lambda method, seed: SimilarityTrainer(taken, items, settings, method, seed),
        metrics={f"hr@{k}": (f"HR@{k}", ".4f") for k in (1, 10, 50, 200)}
        | {"ndcg@10": ("NDCG@10", ".4f"), "mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods=METHODS,
    )


def main():
    """Compare the methods, then the searches."""
    options = options_of()
    task = task_of(options)
    if options.page is not None:
        if not options.page.exists():
            marks = (f"<!-- {section}: {mark} -->\n" for section in sections_of(task) for mark in ("begin", "end"))
            options.page.write_text("".join(marks), encoding="utf-8")
        for section in sections_of(task):
            check_place(options.page, section)
    compare(task, options, options.epochs or (3 if options.data is None else 12))
    search(task, options)


if __name__ == "__main__":
    main()
