"""How far the kernels' scores can be from those of real numbers, so that what is called proven is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.mol.form import Form
from softindex.records import Doubles, Integers

__all__ = ["DOUBLE", "SINGLE", "Errors", "Sizes", "bound_errors", "hidden_sizes", "pair_products"]

SINGLE = 2.0**-24
DOUBLE = 2.0**-53
"""What one operation is off by at most, in parts of its result."""
STEEPNESS = 1.1
"""The derivative of x sigmoid(x) is nowhere larger in size."""
LARGEST = 1e36
TINY = 1e-28
"""What numbers too small for float32 may lose, all in all."""


class Sizes(NamedTuple):
    """How large the parts of a query and of the items can be."""

    queries: Doubles
    """(b, P_q) lengths of the queries' components."""
    items: Doubles
    """(P_x,) the largest length of the items' components."""
    query_gates: Doubles | None
    """(b, P) sizes of u."""
    item_gates: Doubles | None
    """(P,) the largest size of v."""
    hidden: Doubles | None = None
    """(b, h) sizes of the inputs of the gate's hidden layer, where they are known."""

    def take(self, rows: Integers) -> Sizes:
        """Those of some queries."""
        gates, hidden = (None if part is None else part[rows] for part in (self.query_gates, self.hidden))
        return self._replace(queries=self.queries[rows], query_gates=gates, hidden=hidden)


class Errors(NamedTuple):
    """Bounds for each of b queries, whatever the item."""

    score: Doubles
    """(b,) no score is off by more."""
    logit: Doubles
    """(b,) no logit is off by more."""
    ceiling: Doubles
    """(b,) no score or logit is larger in size."""


def bound_errors(form: Form, sizes: Sizes, unit: float) -> Errors:
    """Bounds on the errors of a computation whose operations are off by `unit` at most.

    A sum of m products, added in any order, is off by at most (m + 1) unit / (1 - (m + 1) unit), in parts of the sum of
    their sizes (one more for a bias, one more for dividing the query by the temperature).  Let e be such a bound for
    the logits, and L their size.  Then

    - the inputs of the gate's hidden layer, whose terms add up to A = |first| L + |first_bias| at most, are off by
      |first| e + sum_error A; they themselves are smaller than A, as their terms have both signs;
    - x sigmoid(x) passes an error on no more than 1.1-fold, and is itself computed to 12 |x| + 4 units (the
      exponential is good to 8 + 2 |x| units, and x^2 exp(-|x|) < 0.6);
    - the same twice more: for the second layer with the product u v, and for its activation; let h be what that is off
      by, with the rounding of the difference to the largest and of the exponential;
    - so each weight before it is normalised is off by a factor within exp(+-h), and each weight pi by one within
      exp(+-2 h); two such distributions differ by at most tanh(h) in total variation, which moves a mean of logits
      by at most tanh(h) times their range, 2 L;
    - the weighted mean itself adds the error of the logits and of two sums.
    """
    size = (sizes.queries[:, :, None] * sizes.items / form.temperature).reshape(len(sizes.queries), -1) * (1 + 1e-12)
    logit = _sum_error(form.component_dim + 3, unit) * size
    top, worst = size.max(axis=1), logit.max(axis=1)
    if form.gate is None:
        return Errors(worst + _sum_error(form.query_components + 2, unit) * top + TINY, worst + TINY, top)
    first, second = _sizes_of(form.gate.first), _sizes_of(form.gate.second)
    added = (size + logit) @ first.T + _sizes_of(form.gate.first_bias)
    hidden = logit @ first.T + _sum_error(form.pairs + 2, unit) * added
    hidden_size = (added if sizes.hidden is None else np.minimum(added, sizes.hidden)) + hidden
    hidden = STEEPNESS * hidden + (12 * hidden_size + 4) * unit
    gate_size = (hidden_size + hidden) @ second.T + _sizes_of(form.gate.second_bias)
    gate = hidden @ second.T + _sum_error(len(first) + 3, unit) * gate_size
    if sizes.query_gates is not None and sizes.item_gates is not None:
        product = sizes.query_gates * sizes.item_gates
        gate, gate_size = gate + 3 * unit * (product + gate_size), gate_size + product
    if not (gate_size < LARGEST).all():
        raise InputError("the gate is so large that it would overflow float32; rescale its weights or the queries.")
    gate = STEEPNESS * gate + (12 * gate_size + 4) * unit
    h = (gate + (6 * gate_size + 10) * unit).max(axis=1)
    score = 2 * top * np.tanh(h) + worst + 2 * _sum_error(form.pairs + 4, unit) * top
    return Errors(score * (1 + 1e-9) + TINY, worst + TINY, top)


def pair_products(form: Form) -> tuple[Doubles, Doubles] | None:
    """(P_q P_q, h P_x) products of the weights by which the hidden layer mixes a query's components, and the largest
    size (h P_x,) of each column."""
    if form.gate is None:
        return None
    weights = form.gate.first.astype(np.float64).reshape(-1, form.query_components, form.item_components)
    mixed = weights.transpose(0, 2, 1).reshape(-1, form.query_components)
    products = np.ascontiguousarray((mixed[:, :, None] * mixed[:, None, :]).reshape(len(mixed), -1).T)
    return products, np.abs(products).max(axis=0)


def hidden_sizes(
    form: Form, products: tuple[Doubles, Doubles] | None, queries: Doubles, items: Doubles
) -> Doubles | None:
    """(b, h) how large an input of the hidden layer can be, for queries (b, P_q, d) and items of these lengths (P_x,).

    It is the sum over the item's components x_r of <c_r, x_r>, with c_r = sum_p first[h, (p, r)] q_p / temperature: at
    most the sum of the lengths of c_r times those of x_r.
    """
    if form.gate is None or products is None:
        return None
    b = len(queries)
    dots = np.einsum("bpd,bqd->bpq", queries, queries).reshape(b, -1)
    # What is left of large products may be less than their rounding.
    squares = np.maximum(dots @ products[0], 0) + 1e-13 * np.abs(dots).sum(axis=1)[:, None] * products[1]
    lengths = np.sqrt(squares).reshape(b, -1, form.item_components) / form.temperature
    return np.asarray(lengths @ items * (1 + 1e-9) + _sizes_of(form.gate.first_bias))


def _sum_error(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


def _sizes_of(weights: NDArray[np.float32]) -> Doubles:
    return np.abs(weights.astype(np.float64))
