"""Train sequence encoders with dot products and mixtures of logits, compare rankings, and search a mixture's index.

    python -m experiments.learned_similarity --data Beauty.txt.gz --out runs/similarity --page page.md
    python -m experiments.learned_similarity --data ratings.tsv.gz --seeds 3 --out runs/movies --page page.md

A file of sequences has one user per line: a user number, then the numbers of the user's items in order of time.  A file
of ratings has one rating per line, separated by tabs: user, item, rating, and time in seconds.  The last item of each
user is for testing and the one before it for validation.  All items are ranked, except those the user already took.
Without --data synthetic sequences are used.  A method is an encoder, sasrec or hstu, with a similarity of queries and
items:

- dot: the dot product; cosine: of normalised vectors, divided by a temperature of 0.05.
- dot-equal, cosine-equal: the same with the rank and the number of parameters of the mixture of logits.
- mol: a mixture of the logits of components, with the loss that balances them; mol-plain: without that loss;
  mol-users: one query component is looked up by the number of the user, for files of ratings; mol-tied: one projection
  for the components of both sides, and a gate that learns slowly; mol-constant: the same with a gate that does not
  learn.

HSTU uses the times of ratings.  All are trained with a sampled softmax.  --negatives own (default with --data) draws
for each query, which covers more items and needs fewer draws; --negatives shared (default without) draws once per
batch, so that all similarities are one matrix product.  For sequences, unless --section names a place for the table
alone, an index is built at the end from the first mixture of logits in the directory, and searched with every method.
"""

from pathlib import Path

import numpy as np
import torch

from benchmarks.tables import check_place
from experiments.harness import retrieving
from experiments.harness.command import Task, compare, parser_of, rated
from experiments.harness.encoders import PADDING
from experiments.harness.products import parameters_of
from experiments.harness.ratings import is_ratings, read_ratings
from experiments.harness.results import read as read_runs
from experiments.harness.runs import Run
from experiments.harness.sequences import SequenceTrainer, load_sequences, pad
from experiments.harness.similarities import BALANCED, ENCODERS, SIMILARITIES, model_of, rank_of
from softindex.mol import DotProduct, MixtureOfLogits, build, mutual_information_loss
from softindex.train import UniformSampler, UnigramSampler, sampled_cross_entropy

METHODS = {
    f"{encoder}-{similarity}": f"{name}, {title}"
    for encoder, (name, _) in ENCODERS.items()
    for similarity, title in SIMILARITIES.items()
}
DEFAULT_METHODS = (
    *(f"sasrec-{similarity}" for similarity in SIMILARITIES if similarity != "mol-users"),
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
    "width": 16, "blocks": 1, "length": 10, "dropout": 0.1, "components": 2, "component width": 12, "batch": 32,
    "draws": 64, "negatives": "shared", "sampler": "uniform", "rate": 1e-2, "item rate": 1e-2,
    "gate rate": 1e-3,
}  # fmt: skip
RATINGS = PUBLISHED | {
    "length": 100, "query components": 8, "batch": 8, "targets": 256, "draws": 128, "sampler": "uniform",
    "rate": 1e-3, "item rate": 4e-3, "gate rate": 1e-5, "timed": True, "decay": 20,
}  # fmt: skip
"""For files of ratings.  A step learns from "targets" places of its windows, drawn at random, and the learning rates
fall linearly to zero in "decay" epochs."""
BALANCE = 0.001
"""Weight of the loss that balances the components."""
USERS = 32
"""Users scored at once: the gate's intermediate results then fit into the cache."""
PAIRS = 1 << 13
"""Pairs of query and draw scored at once: the gate's intermediate results then fit into the cache."""
SEARCHED = 2000
"""Users for whom searches are compared."""


def parts_of(method):
    """Encoder and similarity of a method, and the multiple of the learning rates."""
    name, multiple = rated(method)
    return *name.split("-", 1), multiple


class SimilarityTrainer(SequenceTrainer):
    """Trains an encoder and a similarity with a softmax over drawn items."""

    users_at_once = USERS

    def __init__(self, taken, settings, method, seed, events=None):
        super().__init__(taken, settings["items"], settings, seed, events)
        # Some users, evenly spread over the file, are enough to select an epoch.
        self.validated = self.validated[:: max(1, len(self.taken) // settings["validated"])]
        self.draws, self.shared = settings["draws"], settings["negatives"] == "shared"
        self.most, self.decay = settings.get("targets"), settings.get("decay")
        encoder, similarity, faster = parts_of(method)
        self.balance = BALANCE if similarity in BALANCED else 0.0
        self.model = model_of(encoder, similarity, settings)
        groups = ((faster * settings[rate], weights) for rate, weights in self.model.by_rate().items())
        self.optimiser = torch.optim.Adam([{"params": weights, "lr": rate, "full": rate} for rate, weights in groups])
        self.objective = SAMPLERS[settings["sampler"]](settings["items"])
        self.objective.refresh(frequencies=self.frequencies)

    def step(self, epoch, place):
        """Train on the next windows."""
        self.model.train()
        if self.decay is not None:
            for group in self.optimiser.param_groups:
                group["lr"] = group["full"] * max(0.0, 1 - (epoch + place / self.steps) / self.decay)
        inputs, targets = self.examples(epoch, place)
        wanted = (targets != PADDING).nonzero(as_tuple=True)
        if self.most is not None:
            some = torch.randperm(len(wanted[0]))[: self.most]
            wanted = tuple(places[some] for places in wanted)
        users = {name: numbers[wanted] for name, numbers in self.model.users(inputs).items()}
        return self.descend(self.loss(self.model.encoder(inputs)[wanted], targets[wanted], **users))

    def loss(self, queries, targets, **users):
        """Mean loss of queries (b, d) with targets (b,); users=(b,) for a similarity with a user component."""
        items, similarity, extra = self.model.encoder.items, self.model.similarity, 0.0
        target_items = items(targets[:, None])
        if self.balance:
            positive, weights = similarity(queries, target_items, **users, with_weights=True)
            extra = self.balance * mutual_information_loss(weights)
        else:
            positive = similarity(queries, target_items, **users)
        drawn = self.objective.sample(queries, self.draws, shared=self.shared)
        negative = self.negatives(queries, drawn.ids, users)
        losses, _ = sampled_cross_entropy(positive, negative, targets[:, None], drawn)
        return losses.mean() + extra

    def negatives(self, queries, ids, users):
        """Scores (b, m) of drawn ids (m,), or (b, m) where each query has its own."""
        rows = max(1, PAIRS // self.draws)
        starts = range(0, len(queries), rows)
        own = [{name: numbers[start : start + rows] for name, numbers in users.items()} for start in starts]
        parts = zip(queries.split(rows), own, strict=True)
        if self.shared:
            vectors = self.model.encoder.items(ids)
            return torch.cat([self.model.similarity(part, vectors, **theirs) for part, theirs in parts])
        score = self.model.pair_scorer()
        pairs = zip(parts, ids.split(rows), strict=True)
        return torch.cat([score(part, drawn, **theirs) for (part, theirs), drawn in pairs])

    def scores(self, sequences):
        """Scores (b, n) of all items as the next item of padded sequences (b, length)."""
        users = {name: numbers[:, -1] for name, numbers in self.model.users(sequences).items()}
        return self.model.scores(self.model.queries(sequences), **users)

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
        if not isinstance(self.model.similarity, DotProduct | MixtureOfLogits):
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
    title = f"{task.title_of(method)}: {len(index):,} items, {len(queries):,} queries"
    retrieving.publish(measured, title, sections_of(task, options)[1], options.page)


def sections_of(task, options):
    """Names of the page sections for the comparison of methods and, except for ratings and --section, of searches."""
    if options.section is not None:
        return (options.section,)
    return (task.name,) if task.settings.get("timed") else (task.name, f"{task.name}-retrieval")


def options_of():
    """The command line; its training options become part of the settings."""
    parser = parser_of(__doc__, DEFAULT_METHODS)
    parser.add_argument("--data", type=Path, help="file of sequences or of ratings with times, plain or .gz")
    parser.add_argument("--sampler", choices=SAMPLERS, help="sampler of the negatives")
    parser.add_argument("--negatives", choices=("shared", "own"), help="draw once per batch, or for each query")
    parser.add_argument("--draws", type=int, help="number of negatives")
    parser.add_argument("--batch", type=int, help="windows per step")
    parser.add_argument("--rate", type=float, help="learning rate")
    parser.add_argument("--item-rate", type=float, help="learning rate of the item vectors")
    parser.add_argument("--gate-rate", type=float, help="learning rate of the gate of a tied mixture")
    parser.add_argument("--decay", type=int, help="epochs in which the learning rates of ratings fall to zero")
    parser.add_argument("--dropout", type=float, help="dropout of the encoder")
    parser.add_argument("--width", type=int, help="dimensions of query and item vectors")
    parser.add_argument("--components", type=int, help="components per query and per item of a mixture")
    parser.add_argument("--component-width", type=int, help="dimensions of a component")
    return parser.parse_args()


def has_ratings(data):
    """Whether the data, None for synthetic sequences, are ratings."""
    return data is not None and is_ratings(data)


def name_of(data):
    """Name of the experiment with these data."""
    return "learned-similarity-ratings" if has_ratings(data) else "learned-similarity"


def task_of(options):
    """The experiment that a command line describes."""
    settings = dict(SMALL if options.data is None else RATINGS if has_ratings(options.data) else PUBLISHED)
    for setting in settings:
        chosen = getattr(options, setting.replace(" ", "_"), None)
        settings[setting] = settings[setting] if chosen is None else chosen
    return task_with(options.data, settings)


def task_with(data, settings):
    """The experiment with these data and settings."""
    taken, items, name = load_sequences(data)
    events = read_ratings(data) if has_ratings(data) else None
    settings = {"users": len(taken), "items": items, **settings}
    return Task(
        name=name_of(data),
        title=f"Learned similarities, {name}",
        settings=settings,
        make=lambda method, seed: SimilarityTrainer(taken, settings, method, seed, events),
        metrics={f"hr@{k}": (f"HR@{k}", ".4f") for k in (1, 10, 50, 200)}
        | {"ndcg@10": ("NDCG@10", ".4f"), "mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods=METHODS,
        columns={
            "rank": lambda method: str(rank_of(parts_of(method)[1], settings)),
            "parameters": lambda method: f"{parameters_of(model_of(*parts_of(method)[:2], settings)):,}",
        },
    )


def main():
    """Compare the methods, then the searches."""
    options = options_of()
    task = task_of(options)
    sections = sections_of(task, options)
    if options.page is not None:
        if not options.page.exists():
            marks = (f"<!-- {section}: {mark} -->\n" for section in sections for mark in ("begin", "end"))
            options.page.write_text("".join(marks), encoding="utf-8")
        for section in sections:
            check_place(options.page, section)
    compare(task, options, options.epochs or task.settings.get("decay", 3 if options.data is None else 12))
    if len(sections) > 1:
        search(task, options)


if __name__ == "__main__":
    main()
