"""Bounds on the rounding errors of the kernels' scores, so that proofs hold for exact arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.mol.spec import Gate, SimilaritySpec
from softindex.records import Doubles, Floats

__all__ = ["DOUBLE", "SINGLE", "ErrorBounds", "Errors", "Sizes"]

SINGLE = 2.0**-24
DOUBLE = 2.0**-53
"""Largest relative error of one operation, in float32 and in float64."""
STEEPNESS = 1.1
"""Upper bound on the absolute derivative of x sigmoid(x)."""
LARGEST = 1e36
TINY = 1e-28
"""Upper bound on the total loss from numbers that underflow float32."""


class Sizes(NamedTuple):
    """Upper bounds on the sizes of the numbers that enter the scores of b queries."""

    logits: Doubles
    """(b, P) absolute values of the logits."""
    gates: Doubles | None
    """(b, P) absolute values of the products u v of the gates of queries and items; None where there are none."""
    hidden: Doubles | None
    """(b, h) absolute values of the inputs of the gate's hidden layer; None without a gate."""


class Errors(NamedTuple):
    """Upper bounds for each of b queries, for all items."""

    score: Doubles
    """(b,) absolute error of a score."""
    logit: Doubles
    """(b,) absolute error of a logit."""
    ceiling: Doubles
    """(b,) absolute value of a score or logit."""
    weights: Doubles
    """(b,) total variation between the computed weights of the pairs and the exact ones."""


class GateSizes(NamedTuple):
    """Absolute values of the weights of a gate, in float64."""

    first: Doubles
    first_bias: Doubles
    second: Doubles
    second_bias: Doubles

    @classmethod
    def of(cls, gate: Gate) -> GateSizes:
        """Sizes of the weights of one gate."""
        return cls(*(_absolute(getattr(gate, name)) for name in cls._fields))


class ErrorBounds:
    """Bounds for any queries of one index.  Everything that does not depend on the query is computed once."""

    __slots__ = ("_gate", "_item_gates", "_lengths", "_products", "_spec")

    def __init__(self, spec: SimilaritySpec, lengths: Doubles, item_gates: Doubles | None) -> None:
        """lengths: (P_x,) largest length of each item component; item_gates: (P,) largest absolute value of v."""
        self._spec, self._lengths, self._item_gates = spec, lengths, item_gates
        self._gate = None if spec.gate is None else GateSizes.of(spec.gate)
        self._products = _pair_products(spec)

    def sizes(self, components: Doubles, gates: Floats | None) -> Sizes:
        """Sizes for queries with components (b, P_q, d) and gates (b, P)."""
        lengths = np.sqrt(np.einsum("bpd,bpd->bp", components, components)) * (1 + 1e-12)
        logits = (lengths[:, :, None] * self._lengths / self._spec.temperature).reshape(len(lengths), -1) * (1 + 1e-12)
        product = None
        if gates is not None and self._item_gates is not None:
            product = _absolute(gates) * self._item_gates
        return Sizes(logits, product, self._hidden_sizes(components))

    def errors(self, sizes: Sizes, unit: float) -> Errors:
        """Bound the errors of a computation whose operations have relative error `unit` at most.

        A sum of m products, added in any order, has an error of at most (m + 1) unit / (1 - (m + 1) unit) times the sum
        of their absolute values.  Count one more term for a bias, and one more for dividing the query by the
        temperature.  Let e be this bound for the logits, and L their size.  Then:

        - The terms of an input of the gate's hidden layer add up to at most A = |first| L + |first_bias| in absolute
          value.  Its error is at most |first| e + sum_error A.  The inputs themselves are smaller than A, as terms have
          both signs.
        - x sigmoid(x) multiplies an error by at most 1.1, and is itself computed to 12 |x| + 4 units (the exponential
          is good to 8 + 2 |x| units, and x^2 exp(-|x|) < 0.6).
        - The same holds for the second layer with the product u v, and for its activation.  Let h be the resulting
          error, including the rounding of the difference to the largest value and of the exponential.
        - Each weight before normalisation is off by a factor within exp(+-h).  Two such distributions differ by at most
          tanh(h / 2) in total variation: at worst, some weights are multiplied by exp(h) and the others by exp(-h), and
          the former have a share of 1 / (1 + exp(h)).  That moves a mean of logits by at most tanh(h / 2) times their
          range, 2 L.
        - The weighted mean adds the error of the logits and of two sums.
        """
        spec = self._spec
        logit = _sum_error(spec.component_dim + 3, unit) * sizes.logits
        top, worst = sizes.logits.max(axis=1), logit.max(axis=1)
        if self._gate is None:
            score = worst + _sum_error(spec.query_components + 2, unit) * top
            return Errors(score + TINY, worst + TINY, top, np.zeros(len(top)))
        weights = np.tanh(_log_weight_errors(self._gate, sizes, logit, unit) / 2) * (1 + 1e-9)
        score = 2 * top * weights + worst + 2 * _sum_error(spec.pairs + 4, unit) * top
        return Errors(score * (1 + 1e-9) + TINY, worst + TINY, top, weights)

    def _hidden_sizes(self, components: Doubles) -> Doubles | None:
        """(b, h) upper bounds on the inputs of the hidden layer, for queries (b, P_q, d).

        An input is the sum over the item's components x_r of <c_r, x_r>, with c_r = sum_p first[h, (p, r)] q_p /
        temperature.  It is at most the sum of the lengths of c_r times those of x_r.
        """
        if self._gate is None or self._products is None:
            return None
        b, (products, largest) = len(components), self._products
        dots = np.einsum("bpd,bqd->bpq", components, components).reshape(b, -1)
        # Large products may cancel and leave less than their rounding errors.
        squares = np.maximum(dots @ products, 0) + 1e-13 * np.abs(dots).sum(axis=1)[:, None] * largest
        lengths = np.sqrt(squares).reshape(b, -1, self._spec.item_components) / self._spec.temperature
        return np.asarray(lengths @ self._lengths * (1 + 1e-9) + self._gate.first_bias)


def _log_weight_errors(gate: GateSizes, sizes: Sizes, logit_error: Doubles, unit: float) -> Doubles:
    """(b,) h of `ErrorBounds.errors`, from the errors (b, P) of the logits."""
    added = (sizes.logits + logit_error) @ gate.first.T + gate.first_bias
    error = logit_error @ gate.first.T + _sum_error(gate.first.shape[1] + 2, unit) * added
    hidden_size = (added if sizes.hidden is None else np.minimum(added, sizes.hidden)) + error
    error = STEEPNESS * error + (12 * hidden_size + 4) * unit
    gate_size = (hidden_size + error) @ gate.second.T + gate.second_bias
    gate_error = error @ gate.second.T + _sum_error(len(gate.first) + 3, unit) * gate_size
    if sizes.gates is not None:
        gate_error, gate_size = gate_error + 3 * unit * (sizes.gates + gate_size), gate_size + sizes.gates
    if not (gate_size < LARGEST).all():
        raise InputError("the gate would overflow float32; rescale its weights or the queries.")
    gate_error = STEEPNESS * gate_error + (12 * gate_size + 4) * unit
    return np.asarray((gate_error + (6 * gate_size + 10) * unit).max(axis=1))


def _pair_products(spec: SimilaritySpec) -> tuple[Doubles, Doubles] | None:
    """Products (P_q P_q, h P_x) of the weights by which the hidden layer mixes a query's components.

    Also the largest absolute value (h P_x,) of each column.  None without a gate.
    """
    if spec.gate is None:
        return None
    weights = spec.gate.first.astype(np.float64).reshape(-1, spec.query_components, spec.item_components)
    mixed = weights.transpose(0, 2, 1).reshape(-1, spec.query_components)
    products = np.ascontiguousarray((mixed[:, :, None] * mixed[:, None, :]).reshape(len(mixed), -1).T)
    return products, np.abs(products).max(axis=0)


def _sum_error(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


def _absolute(values: NDArray[np.float32]) -> Doubles:
    return np.abs(values.astype(np.float64))
