"""One table of every stored array, per kind: saving, loading, checking and memory accounting follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import MAX_LOG_BIAS
from softindex.errors import CorruptIndexError, show
from softindex.records import Json, Stored

__all__ = ["ADAPTIVE", "INDEX", "MIXTURE", "Field", "Table", "check_choices", "flatten", "is_small", "whole_number"]

SMALL_BYTES = 16 << 20
"""Values of larger arrays with several axes are looked at only where all bytes are verified: mapping is quick."""
LARGEST = 2**63 - 1
"""The largest integer that a parameter may be."""


@dataclass(frozen=True, slots=True)
class Field:
    """One stored array."""

    name: str
    dtype: str
    """NumPy name; several separated by "|"; "integer" for any signed integer type."""
    axes: str
    """Length of each axis, in symbols of the kind (see the tables below); "*" for any length."""
    group: str = ""
    """Stored only where the group is: the arrays of a group come together or not at all."""
    since: int = 1
    """Format version that introduced it; older files may lack it."""
    values: str = ""
    """What code relies on: a key of `VALUES`, or "" for nothing."""

    def problem(self, array: NDArray[Any], sizes: dict[str, int], *, every: bool = False) -> str | None:
        """What is wrong with a stored array, in words; None if nothing is.  Binds symbols met for the first time.

        every: look at the values of arrays of any size.
        """
        if not _has_dtype(array, self.dtype):
            return f"{self.name} is {array.dtype} where {self.dtype.replace('|', ' or ')} is expected"
        symbols = self.axes.split()
        if array.ndim != len(symbols):
            return f"{self.name} has {array.ndim} axes where {len(symbols)} are expected"
        for axis, symbol in enumerate(symbols):
            length = array.shape[axis]
            if symbol != "*" and length != sizes.setdefault(symbol, length):
                return f"axis {axis} of {self.name} has length {length} where {symbol} = {sizes[symbol]} is expected"
        if self.values and (every or is_small(array)) and not VALUES[self.values](array):
            return f"{self.name} holds values that no index has ({self.values} is expected)"
        return None


def _has_dtype(array: NDArray[Any], dtype: str) -> bool:
    if dtype == "integer":
        return array.dtype.kind == "i"
    return any(array.dtype == np.dtype(name) for name in dtype.split("|"))


def is_small(array: NDArray[Any]) -> bool:
    """Whether the values of an array are looked at whenever it is loaded: one number per item is never too many."""
    return array.ndim < 2 or array.nbytes <= SMALL_BYTES


def _is_finite(array: NDArray[Any]) -> bool:
    if array.dtype == np.uint16:
        # bfloat16: an exponent of ones is infinity or NaN.
        return bool(((array & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(array).all())


VALUES: dict[str, Callable[[NDArray[Any]], bool]] = {
    "finite": _is_finite,
    "nonnegative": lambda array: _is_finite(array) and bool((array >= 0).all()),
    "positive": lambda array: _is_finite(array) and bool((array > 0).all()),
    "log": lambda array: not (np.isnan(array).any() or np.isposinf(array).any()),
    "bias": lambda array: bool((np.abs(array) <= MAX_LOG_BIAS).all()),
    "sorted": lambda array: _is_finite(array) and bool((array >= 0).all() and (np.diff(array) >= 0).all()),
}
"""What can be expected of values: numbers; numbers of at least or above 0; numbers or -inf; numbers that a bias may be;
numbers of at least 0, increasing along the last axis."""


@dataclass(frozen=True, slots=True)
class Table:
    """Every array that one kind of directory may hold."""

    kind: str
    fields: tuple[Field, ...]

    @property
    def version(self) -> int:
        """Format version that this kind is saved in: the last one that changed it."""
        return max(field.since for field in self.fields)

    def version_of(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """The first format version that may hold these arrays."""
        return max(field.since for field in self.fields if field.name in arrays)

    def check(self, stored: Stored, sizes: Mapping[str, int], groups: Iterable[str]) -> None:
        """Raise CorruptIndexError unless the arrays are those of these groups, with these sizes.

        Args:
            stored: What was read.
            sizes: Length of every symbol that the parameters determine.
            groups: Groups the parameters ask for.  A group that is present in part is always an error.
        """
        arrays, known = stored.arrays, dict(sizes)
        present = {field.group for field in self.fields if field.name in arrays}
        active = {"", *groups}
        for field in self.fields:
            if field.group not in active:
                continue
            array = arrays.get(field.name)
            if array is None:
                if field.since <= stored.version or (field.group and field.group in present):
                    raise damaged(f"{field.name} is missing")
                continue
            problem = field.problem(array, known, every=stored.verified)
            if problem is not None:
                raise damaged(problem)
        stray = arrays.keys() - {field.name for field in self.fields if field.group in active}
        if stray:
            raise damaged(f"{min(stray)} does not belong to it")

    def memory(self, arrays: Mapping[str, NDArray[Any]], groups: Iterable[str]) -> int:
        """Bytes of the arrays that belong to these groups ("" for those every file holds)."""
        wanted = set(groups)
        names = {field.name for field in self.fields if field.group in wanted}
        return sum(array.nbytes for name, array in arrays.items() if name in names)


def damaged(reason: str) -> CorruptIndexError:
    """The error for a directory whose checksums are right and whose contents are not."""
    return CorruptIndexError(f"this saved index is damaged: {reason}; restore a copy or build it again.")


def whole_number(parameters: Json, name: str, least: int = 0) -> int:
    """A parameter that must be an integer; CorruptIndexError where it is not."""
    value = parameters.get(name)
    if type(value) is not int or not least <= value <= LARGEST:
        raise damaged(f"its parameter {name} is {show(value)} where an integer of at least {least} is expected")
    return value


def check_choices(parameters: Json, choices: Mapping[str, tuple[Any, ...]]) -> None:
    """CorruptIndexError unless each of these parameters is one of its choices, of the same type."""
    for name, allowed in choices.items():
        value = parameters.get(name)
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            raise damaged(f"its parameter {name} is {show(value)}")


def flatten(record: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a dataclass by the names they are stored under: prefix and field; records inside it likewise."""
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            arrays |= flatten(value, prefix)
        elif isinstance(value, np.ndarray):
            arrays[prefix + field.name] = value
    return arrays


_IDS = (
    Field("id_rows", "integer", "n", "rows"),
    Field("id_positions", "integer", "n", "rows"),
    Field("id_values", "int64", "n", "integers"),
    Field("id_keys", "int64", "n", "integers"),
    Field("id_positions", "integer", "n", "integers"),
    Field("id_text", "uint8", "*", "strings"),
    Field("id_ends", "int64", "n", "strings"),
    Field("id_hashes", "uint64", "n", "strings"),
    Field("id_positions", "integer", "n", "strings"),
    Field("id_key", "uint64", "2", "keyed strings", since=3),
)

# n items, w numbers in a stored item (one more than a query has where items have a bias), k clusters, r rank of the
# dispersion, t = w (w + 1) / 2, g temperatures and b queries of the calibration.
INDEX = Table(
    "index",
    (
        Field("vectors", "float32", "n w", "float32", values="finite"),
        Field("residual_values", "int8", "n w", "int8", since=3),
        Field("residual_values", "int16", "n w", "int16", since=3),
        Field("residual_scales", "float32", "n", "residuals", since=3, values="nonnegative"),
        Field("residual_centres", "float32", "k w", "residuals", since=3, values="finite"),
        Field("residual_lengths", "float32", "k", "residuals", since=3, values="nonnegative"),
        Field("residual_bias", "float32", "n", "residual bias", since=3, values="finite"),
        Field("offsets", "int64", "k+1"),
        Field("means", "float32", "k w", values="finite"),
        Field("log_sizes", "float64", "k", values="log"),
        Field("radii", "float32", "k", values="nonnegative"),
        Field("norm_min", "float32", "k", values="nonnegative"),
        Field("norm_max", "float32", "k", values="nonnegative"),
        Field("min_cosine", "float32", "k", since=2, values="finite"),
        Field("reach", "float32", "k", since=2, values="finite"),
        Field("log_bias", "float32", "n", "log_bias", values="bias"),
        Field("bias_max", "float32", "k", "log_bias", values="log"),
        Field("forms", "int16", "k t", "full"),
        Field("scales", "float32", "k 1", "full", values="nonnegative"),
        Field("excess", "float32", "k", "full", values="nonnegative"),
        Field("forms", "int8", "k r w", "rank"),
        Field("scales", "float32", "k r", "rank", values="nonnegative"),
        Field("spread", "float32", "k", "rank", values="nonnegative"),
        Field("excess", "float32", "k", "rank", values="nonnegative"),
        Field("code_values", "int8", "n w", "codes"),
        Field("code_scales", "float32", "n", "codes", values="nonnegative"),
        Field("code_errors", "float32", "k", "codes", values="nonnegative"),
        Field("code_lengths", "float32", "k", "codes", values="nonnegative"),
        Field("sketch_values", "uint8", "blocks groups 64", "sketch", since=3),
        Field("sketch_scales", "float32", "blocks 16", "sketch", since=3, values="nonnegative"),
        Field("sketch_errors", "float32", "k", "sketch", since=3, values="nonnegative"),
        Field("sketch_lengths", "float32", "k", "sketch", since=3, values="nonnegative"),
        Field("sketch_recall", "float64", "levels 2", "sketch", since=3, values="nonnegative"),
        Field("sketch_tails", "float64", "points", "sketch", since=3, values="nonnegative"),
        Field("outlier_positions", "int64", "m", "outliers", since=2),
        Field("outlier_vectors", "float32", "m w", "outliers", since=2, values="finite"),
        Field("outlier_farthest", "float32", "1", "outliers", since=2, values="nonnegative"),
        Field("tree_children", "int64", "k-1 2", "tree"),
        Field("tree_means", "float32", "2k-2 w", "tree", values="finite"),
        Field("tree_log_sizes", "float64", "2k-2", "tree", values="log"),
        Field("tree_forms", "int16", "2k-2 t", "tree-full"),
        Field("tree_scales", "float32", "2k-2 1", "tree-full", values="nonnegative"),
        Field("tree_forms", "int8", "2k-2 r w", "tree-rank"),
        Field("tree_scales", "float32", "2k-2 r", "tree-rank", values="nonnegative"),
        Field("tree_spread", "float32", "2k-2", "tree-rank", values="nonnegative"),
        Field("calibration_temperatures", "float64", "g", "calibration", since=3, values="finite"),
        Field("calibration_errors", "float64", "g b", "calibration", since=3, values="finite"),
        Field("calibration_log_partitions", "float64", "g b", "calibration", since=3, values="nonnegative"),
        *_IDS,
    ),
)

# n items, p components of an item, q of a query, c numbers in a component, pairs = p q, k clusters, r directions in
# which items differ from their centres.  The other symbols are the widths of layers.
MIXTURE = Table(
    "mixture-index",
    (
        Field("components", "float32", "n p c", since=2, values="finite"),
        Field("averages", "float32", "n c", values="finite"),
        Field("lengths", "float64", "p", values="nonnegative"),
        Field("gates", "float32", "n pairs", "item gates", values="finite"),
        Field("gate_sizes", "float64", "pairs", "item gates", values="nonnegative"),
        Field("gate.first", "float32", "h pairs", "gate", values="finite"),
        Field("gate.first_bias", "float32", "h", "gate", values="finite"),
        Field("gate.second", "float32", "pairs h", "gate", values="finite"),
        Field("gate.second_bias", "float32", "pairs", "gate", values="finite"),
        Field("query.hidden", "float32", "2f D", "query", values="finite"),
        Field("query.hidden_bias", "float32", "2f", "query", values="finite"),
        Field("query.out", "float32", "o f", "query", values="finite"),
        Field("query.out_bias", "float32", "o", "query", values="finite"),
        Field("query.gate_first", "float32", "g D", "query gate", values="finite"),
        Field("query.gate_first_bias", "float32", "g", "query gate", values="finite"),
        Field("query.gate_second", "float32", "pairs g", "query gate", values="finite"),
        Field("query.gate_second_bias", "float32", "pairs", "query gate", values="finite"),
        Field("query.users", "float32", "u c", "users", values="finite"),
        Field("clusters.offsets", "int64", "k+1", "clusters", since=3),
        Field("clusters.order", "int64", "n", "clusters", since=3),
        Field("clusters.centres", "float32", "k p c", "clusters", since=3, values="finite"),
        Field("clusters.gates", "float32", "k pairs", "clustered gates", since=3, values="finite"),
        Field("clusters.basis", "float32", "r p c", "clusters", since=3, values="finite"),
        Field("clusters.features", "float32", "n r", "clusters", since=3, values="finite"),
        Field("clusters.spreads", "float32", "k r", "clusters", since=3, values="nonnegative"),
        *_IDS,
    ),
)

# n classes, d numbers in a row, h bytes of a row in four bits, l levels of few bits, m queries calibrated with.
ADAPTIVE = Table(
    "adaptive-softmax",
    (
        Field("weights", "float32|float16|uint16", "n d", values="finite"),
        Field("bias", "float32", "n", values="bias"),
        Field("log_bias", "float32", "n", since=2, values="bias"),
        Field("columns", "float32", "d", values="positive"),
        Field("lengths", "float32", "n", values="nonnegative"),
        Field("codes_4", "uint8", "n h", "four bits"),
        Field("scales_4", "float32", "n", "four bits", values="nonnegative"),
        Field("errors_4", "float32", "n", "four bits", values="nonnegative"),
        Field("codes_8", "int8", "n d"),
        Field("scales_8", "float32", "n", values="nonnegative"),
        Field("errors_8", "float32", "n", values="nonnegative"),
        Field("calibration", "float64", "l m", "calibration", values="sorted"),
        Field("calibration_answers", "float64", "m", "answers", since=3, values="sorted"),
    ),
)
