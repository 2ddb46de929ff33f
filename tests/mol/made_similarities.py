"""Made-up similarities of every kind, without torch."""

from dataclasses import dataclass

import numpy as np

from softindex.mol import Form, Gate, ItemSide
from softindex.mol.reference import scores


def unit(values):
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class Given:
    """A similarity whose items come as components and gates side by side."""

    known: Form
    components: np.ndarray
    gates: np.ndarray | None

    def form(self):
        return self.known

    def item_side(self, rows):
        rows = np.asarray(rows)
        return ItemSide(self.components[rows], None if self.gates is None else self.gates[rows])


def gate(rng, pairs, hidden=9, scale=1.0):
    def layer(*shape):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    return Gate(layer(hidden, pairs), layer(hidden), layer(pairs, hidden) / np.float32(3), layer(pairs))


def similarity(kind="mixture", n=200, parts=(3, 2), d=5, temperature=0.1, scale=1.0, hidden=9, seed=0):
    """kind: "mixture" (u, v and w), "logits" (w alone) or "largest" (no gate)."""
    rng = np.random.default_rng(seed)
    pairs = parts[0] * parts[1]
    w = None if kind == "largest" else gate(rng, pairs, hidden, scale)
    form = Form(*parts, d, temperature, True, w, None, False)
    return Given(form, unit(rng.standard_normal((n, parts[1], d))), None)


def with_item_gates(given, seed=0):
    """The same with gates of items; such a form takes queries that have gates as well, which only torch modules make."""
    rng, form = np.random.default_rng(seed), given.known
    gates = rng.standard_normal((len(given.components), form.pairs)).astype(np.float32)
    return Given(form, given.components, gates)


def queries_of(given, b=6, seed=1):
    form = given.known
    shape = (b, form.query_components, form.component_dim)
    return unit(np.random.default_rng(seed).standard_normal(shape))


def truth(given, queries):
    return scores(given.known, queries, given.components)
