"""Made-up similarities of every kind, without torch."""

from dataclasses import dataclass, fields, replace

import numpy as np

from softindex.mol import Gate, ItemSide, QueryWeights, SimilaritySpec
from softindex.mol.index import KIND, from_stored
from softindex.mol.queries import encode
from softindex.mol.reference import scores
from softindex.records import Estimate
from softindex.store import load as load_stored

KINDS = ("mixture", "logits", "largest")
WIDTH = 6
"""Numbers in a query of the kind "mixture"."""


def unit(values):
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class Given:
    """A similarity whose items come as components and gates; an item is named by its row."""

    known: SimilaritySpec
    components: np.ndarray
    gates: np.ndarray | None = None

    def spec(self):
        return self.known

    def item_side(self, rows):
        rows = np.asarray(rows)
        return ItemSide(self.components[rows], None if self.gates is None else self.gates[rows])

    def repeated(self, rows):
        return replace(self, components=self.components[rows], gates=None if self.gates is None else self.gates[rows])


def layers(rng, inputs, hidden, outputs, scale=1.0):
    shapes = (hidden, inputs), (hidden,), (outputs, hidden), (outputs,)
    return [(scale * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for shape in shapes]


def gate(rng, pairs, hidden=9, scale=1.0):
    return Gate(*layers(rng, pairs, hidden, pairs, scale))


def similarity(kind="mixture", n=200, parts=(3, 2), d=5, temperature=0.1, scale=1.0, hidden=9, seed=0, users=None):
    """kind: "mixture" (gates u, v and w), "logits" (w alone) or "largest" (no gate)."""
    rng = np.random.default_rng(seed)
    pairs = parts[0] * parts[1]
    w = None if kind == "largest" else gate(rng, pairs, hidden, scale)
    components, weights, gates = unit(rng.standard_normal((n, parts[1], d))), None, None
    if kind == "mixture":
        table = None if users is None else rng.standard_normal((users, d)).astype(np.float32)
        own = parts[0] - (users is not None)
        hidden_layer = layers(rng, WIDTH, 14, 1)[:2]
        out = layers(rng, 7, own * d, 1)[:2]
        query_gate = layers(rng, WIDTH, 4, pairs, 2.0)
        weights = QueryWeights(*hidden_layer, *out, *query_gate, table)
        gates = rng.standard_normal((n, pairs)).astype(np.float32)
    return Given(SimilaritySpec(*parts, d, temperature, True, w, weights, gates is not None), components, gates)


def queries_of(given, b=6, seed=1):
    spec, rng = given.known, np.random.default_rng(seed)
    if spec.query is not None:
        return rng.standard_normal((b, WIDTH)).astype(np.float32)
    return unit(rng.standard_normal((b, spec.query_components, spec.component_dim)))


def truth(given, queries, users=None):
    side = encode(given.known, queries, users)
    return scores(given.known, side.components, given.components, side.gates, given.gates)


def load(path, mmap=True):
    """A saved index, as `softindex.load` opens it."""
    return from_stored(load_stored(path, mmap=mmap, kind=KIND))


def values_of(record, row=slice(None)):
    """The fields of a result by name; row: of one query."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Estimate):
            found |= {f"{field.name}.{name}": part for name, part in values_of(value, row).items()}
        elif value is not None:
            found[field.name] = value[row] if isinstance(value, np.ndarray) else value
    return found


def assert_same(record, other, row=slice(None)):
    """Two results are equal in every field; row: the first result's row that the second one is."""
    values, others = values_of(record, row), values_of(other)
    assert values.keys() == others.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)
