"""Train sequence encoders with a dot product and with a mixture of logits, compare their ranks, and search the latter.

    python examples/learned_similarity.py --data Beauty.txt.gz --out runs/similarity --page page.md

A line of the file is a user, then the items that the user took, by number, in the order of time.  The last item of each
user is for testing and the one before it for validation.  All items are ranked, but for those the user took before.
Without --data sequences are made up.  A method is an encoder, sasrec or hstu, and a similarity of its queries to items:

- dot: the dot product; cosine: of vectors of length one, divided by a temperature of 0.05.
- mol: a mixture of the logits of 4 x 4 components, with the loss that balances them; mol-plain: without that loss;
  mol-tied: with that loss, one projection for the components of both sides, and a gate that learns slowly;
  mol-constant: the same with a gate that stays as it is.

All are trained by a sampled softmax.  With --negatives own, as with --data, each query has its own draws, so that more
of the items are seen and fewer draws do; with --negatives shared, as without, those of a batch are the same, and their
similarities to all queries are one product of matrices.  At the end a catalogue is made of the first mixture of logits
in the folder, and searched in every way.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from comparing import retrieving
from comparing.command import Task, compare, parser_of
from comparing.encoders import PADDING
from comparing.hstu import HSTU
from comparing.results import read as read_runs
from comparing.runs import Run
from comparing.sasrec import SASRec
from comparing.sequences import SequenceTrainee, padded, taken_and_called
from comparing.tied import TiedMixture
from softindex.evaluate.tables import check_place
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
USUAL = (*(f"sasrec-{similarity}" for similarity in SIMILARITIES), "hstu-dot", "hstu-mol", "hstu-mol-constant")
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
"""Users and items whose similarities are computed at once: what the gate makes of them stays in the cache."""
PAIRS = 1 << 15
"""Queries and draws that are trained on at once: larger tensors are given back to the system, and are slow to get."""
SEARCHED = 2000
"""Users whose searches are compared."""


class Model(nn.Module):
    """An encoder of sequences, and the similarity of its queries to its items."""

    def __init__(self, encoder, similarity):
        super().__init__()
        self.encoder, self.similarity = encoder, similarity

    def by_rate(self):
        """The weights by the name of the rate that they learn at.

        Of a vector whose length does not matter, the longer it has grown, the less a step turns it: items learn faster.
        A gate that learns as fast as the components of a tied mixture spoils them: see the page of results.
        """
        items = [self.encoder.items.weight]
        gate = list(self.similarity.mixture.parameters()) if isinstance(self.similarity, TiedMixture) else []
        apart = {id(weights) for weights in [*items, *gate]}
        others = [weights for weights in self.parameters() if id(weights) not in apart]
        found = {"rate": others, "item rate": items, "gate rate": gate}
        return {rate: weights for rate, weights in found.items() if weights}

    def queries(self, sequences):
        """(b, d) for what comes after padded sequences (b, length)."""
        return self.encoder(sequences)[:, -1]

    def looked_up(self):
        """The similarities (b, m) of queries (b, d) to items (b, m), each query its own, as a function of the two.

        There are more draws than items: what does not depend on the query is computed for all items once.
        """
        items, similarity = self.encoder.items, self.similarity
        if isinstance(similarity, DotProduct):
            return lambda queries, ids: similarity(queries, items(ids))
        components, gates = similarity.encode_items(items.weight)

        def look(queries, ids):
            mine = functional.embedding(ids, components.flatten(1)).unflatten(-1, components.shape[1:])
            own = None if gates is None else functional.embedding(ids, gates)
            return similarity.combine(*similarity.encode_queries(queries), mine, own)

        return look

    def scores(self, queries):
        """(b, n) of all items."""
        parts = self.encoder.items.weight.split(ITEMS)
        return torch.cat([self.similarity(queries, part) for part in parts], dim=1)


def model_of(method, items, settings):
    """The model that a method trains, as new."""
    encoder, similarity = method.split("-", 1)
    shape = {name: settings[name] for name in ("width", "blocks", "heads", "length", "dropout")}
    width = settings["width"]
    if similarity == "dot":
        made = DotProduct(width)
    elif similarity == "cosine":
        made = DotProduct(width, temperature=TEMPERATURE, normalised=True)
    else:
        count, size = settings["components"], {"component_dim": settings["component width"], "temperature": TEMPERATURE}
        if similarity in ("mol-tied", "mol-constant"):
            made = TiedMixture(width, components=count, learn_gate=similarity == "mol-tied", **size)
        else:
            made = MixtureOfLogits(width, width, query_components=count, item_components=count, **size)
    return Model(ENCODERS[encoder][1](items, **shape), made)


class Learner(SequenceTrainee):
    """An encoder and a similarity, with a softmax over drawn items."""

    users_at_once = USERS

    def __init__(self, taken, items, settings, method, seed):
        super().__init__(taken, items, settings, seed)
        # Some of the users, from everywhere in the file, are enough to choose an epoch.
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
        """Learn from the next windows."""
        self.model.train()
        inputs, targets = self.examples(epoch, place)
        wanted = targets != PADDING
        return self.descend(self.loss(self.model.encoder(inputs)[wanted], targets[wanted]))

    def loss(self, queries, targets):
        """The mean loss of queries (b, d) whose targets are (b,)."""
        items, similarity, extra = self.model.encoder.items, self.model.similarity, 0.0
        right = items(targets[:, None])
        if self.balance:
            positive, weights = similarity(queries, right, with_weights=True)
            extra = self.balance * mutual_information_loss(weights)
        else:
            positive = similarity(queries, right)
        drawn = self.objective.sample(queries, self.draws, shared=self.shared)
        rows = max(1, PAIRS // self.draws)
        if self.shared:
            vectors = items(drawn.ids)
            negative = torch.cat([similarity(part, vectors) for part in queries.split(rows)])
        else:
            parts = zip(queries.split(rows), drawn.ids.split(rows), strict=True)
            look = self.model.looked_up()
            negative = torch.cat([look(part, ids) for part, ids in parts])
        losses, _ = sampled_cross_entropy(positive, negative, targets[:, None], drawn)
        return losses.mean() + extra

    def scores(self, sequences):
        """(b, n) scores of all items for what comes after padded sequences (b, length)."""
        return self.model.scores(self.model.queries(sequences))

    def figures(self, ranks):
        """Hit rates, NDCG and the mean reciprocal rank of the ranks (b,), from 0, of what users took."""
        found = {f"hr@{k}": (ranks < k).double().mean() for k in (1, 10, 50, 200)}
        found["ndcg@10"] = ((ranks < 10) / torch.log2(ranks + 2)).mean()
        found["mrr"] = (1 / (ranks + 1)).mean()
        return {name: float(value) for name, value in found.items()}

    @torch.no_grad()
    def searched(self):
        """A catalogue of the items; queries of some users, what they took, and what they took next."""
        self.model.eval()
        some = self.taken[:: max(1, len(self.taken) // SEARCHED)]
        before = [sequence[:-1] for sequence in some]
        catalogue = build(self.model.similarity, self.model.encoder.items.weight.detach())
        queries = self.model.queries(padded(before, self.length))
        if isinstance(self.model.similarity, TiedMixture):
            queries, _ = self.model.similarity.encode_queries(queries)
        return catalogue, queries.numpy(), before, np.array([sequence[-1] for sequence in some])


def search(task, options):
    """Compare the ways to search a catalogue of the first run in the folder that trained a mixture of logits."""
    runs = [run for method, found in read_runs(task, options.out).items() if "mol" in method for run in found]
    if not runs:
        return
    method, seed = runs[0]["method"], runs[0]["seed"]
    learner, progress = Run(task, method, seed, options.out).begin()
    learner.model.load_state_dict(progress.best)
    catalogue, queries, seen, wanted = learner.searched()
    found = retrieving.examine(catalogue, queries, seen, wanted, options.threads)
    title = f"{METHODS[method]}: {len(catalogue):,} items, {len(queries):,} queries"
    retrieving.publish(found, title, sections_of(task)[1], options.page)


def sections_of(task):
    """Where in a page the comparison of methods stands, and where that of searches."""
    return task.name, f"{task.name}-retrieval"


def options_of():
    """The command line; what it sets of the training is part of the settings."""
    parser = parser_of(__doc__, USUAL)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    parser.add_argument("--sampler", choices=SAMPLERS, help="law of the negatives")
    parser.add_argument("--negatives", choices=("shared", "own"), help="one set for a batch, or one for each query")
    parser.add_argument("--draws", type=int, help="negatives in a set")
    parser.add_argument("--batch", type=int, help="windows in a step")
    parser.add_argument("--rate", type=float, help="of the optimiser")
    parser.add_argument("--item-rate", type=float, help="of the items' vectors")
    parser.add_argument("--gate-rate", type=float, help="of the gate of a tied mixture")
    parser.add_argument("--dropout", type=float, help="of the encoder")
    parser.add_argument("--width", type=int, help="of the vectors of queries and items")
    parser.add_argument("--components", type=int, help="of a mixture's queries, and of its items")
    parser.add_argument("--component-width", type=int, help="of each of them")
    return parser.parse_args()


def main():
    """Compare the methods, then the searches."""
    options = options_of()
    taken, items, name = taken_and_called(options.data)
    settings = dict(SMALL if options.data is None else PUBLISHED)
    for setting in settings:
        chosen = getattr(options, setting.replace(" ", "_"), None)
        settings[setting] = settings[setting] if chosen is None else chosen
    task = Task(
        name="learned-similarity",
        title=f"Learned similarities, {name}",
        settings={"users": len(taken), "items": items, **settings},
        make=lambda method, seed: Learner(taken, items, settings, method, seed),
        metrics={f"hr@{k}": (f"HR@{k}", ".4f") for k in (1, 10, 50, 200)}
        | {"ndcg@10": ("NDCG@10", ".4f"), "mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods=METHODS,
    )
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
