"""Sequence encoders with a similarity of queries and items: the models of the experiment with learned similarities."""

import torch
from torch import nn
from torch.nn import functional

from experiments.harness.encoders import USER
from experiments.harness.hstu import HSTU
from experiments.harness.products import WideProduct, parameters_of
from experiments.harness.sasrec import SASRec
from experiments.harness.tied import TiedMixture
from softindex.mol import DotProduct, MixtureOfLogits

ENCODERS = {"sasrec": ("SASRec", SASRec), "hstu": ("HSTU", HSTU)}
SIMILARITIES = {
    "dot": "dot product",
    "cosine": "cosine",
    "dot-equal": "dot product, equal rank and parameters",
    "cosine-equal": "cosine, equal rank and parameters",
    "mol": "mixture of logits",
    "mol-users": "mixture of logits, user component",
    "mol-plain": "mixture of logits, not balanced",
    "mol-tied": "mixture of logits, tied",
    "mol-constant": "mixture of logits, tied, constant gate",
}
BALANCED = ("mol", "mol-users", "mol-tied")
"""Similarities that are trained with the loss that balances the components."""
TEMPERATURE = 0.05
ITEMS = 1024
"""Items scored at once: the gate's intermediate results then fit into the cache."""


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

    def users(self, sequences):
        """Users (b, length) of events (b, length, 3) as keyword of the similarity, if it has a user component."""
        return {"users": sequences[..., USER]} if getattr(self.similarity, "user_table", None) is not None else {}

    def pair_scorer(self):
        """A function of queries (b, d) and ids (b, m) that returns their similarities (b, m).

        There are more draws than items, so the parts that do not depend on the query are computed once for all items.
        """
        items, similarity = self.encoder.items, self.similarity
        if isinstance(similarity, DotProduct):
            return product_scorer(similarity, items.weight)
        components, gates = similarity.encode_items(items.weight)

        def score(queries, ids, **users):
            mine = functional.embedding(ids, components.flatten(1)).unflatten(-1, components.shape[1:])
            own = None if gates is None else functional.embedding(ids, gates)
            return similarity.combine(*similarity.encode_queries(queries, **users), mine, own)

        return score

    def scores(self, queries, **users):
        """Scores (b, n) of all items."""
        parts = self.encoder.items.weight.split(ITEMS)
        return torch.cat([self.similarity(queries, part, **users) for part in parts], dim=1)


def product_scorer(similarity, items):
    """A pair scorer for a dot product or cosine: scaling all items (n, d) is cheaper than scaling all draws."""
    scale = functional.normalize if similarity.normalised else nn.Identity()
    vectors, plain = scale(items), DotProduct(similarity.dim, temperature=similarity.temperature)
    return lambda queries, ids: plain(scale(queries), functional.embedding(ids, vectors))


def mixture_of(settings, users=None):
    """A new mixture of logits as published; users: rows of the table of its user component."""
    width = settings["width"]
    return MixtureOfLogits(
        width,
        width,
        query_components=settings.get("query components", settings["components"]),
        item_components=settings["components"],
        component_dim=settings["component width"],
        temperature=TEMPERATURE,
        users=users,
    )


def rank_of(name, settings):
    """Rank of the matrix of scores if the weights of the gate were constant."""
    return settings["width"] if name in ("dot", "cosine") else settings["components"] * settings["component width"]


def similarity_of(name, settings):
    """A new similarity; the products of equal rank have as many parameters as the mixture without user component."""
    width = settings["width"]
    if name in ("mol-tied", "mol-constant"):
        sizes = {"components": settings["components"], "component_dim": settings["component width"]}
        return TiedMixture(width, **sizes, temperature=TEMPERATURE, learn_gate=name == "mol-tied")
    if name.startswith("mol"):
        return mixture_of(settings, settings["users"] if name == "mol-users" else None)
    scaled = {"temperature": TEMPERATURE, "normalised": True} if name.startswith("cosine") else {}
    if name.endswith("-equal"):
        parameters = parameters_of(mixture_of(settings))
        return WideProduct(width, rank=rank_of(name, settings), parameters=parameters, **scaled)
    return DotProduct(width, **scaled)


def model_of(encoder, similarity, settings):
    """A new model; settings with the number of items, and `timed` if sequences are events."""
    shape = {name: settings[name] for name in ("width", "blocks", "heads", "length", "dropout")}
    if encoder == "hstu" and settings.get("timed"):
        shape["timed"] = True
    return Model(ENCODERS[encoder][1](settings["items"], **shape), similarity_of(similarity, settings))
