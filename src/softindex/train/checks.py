"""Checks of the arguments that samplers, losses and diagnoses share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from softindex.errors import InputError, MethodError, show

__all__ = [
    "IGNORED",
    "bias_of",
    "check_bias",
    "check_choice",
    "check_dim",
    "check_frequencies",
    "check_ids",
    "check_items",
    "check_number",
    "check_range",
    "check_rows",
    "check_vector",
    "flatten_queries",
    "weight_of",
]

IGNORED = -100
"""Target that does not count, as in torch."""


def weight_of(items: Any) -> Any:
    """The class vectors: the weight of a layer such as nn.Embedding or nn.Linear, or the argument itself."""
    if not isinstance(items, nn.Module):
        return items
    weight = getattr(items, "weight", None)
    if not isinstance(weight, Tensor):
        raise InputError(
            f"items: got {type(items).__name__}, a module without a weight; pass the output layer itself, such as "
            "nn.Linear or nn.Embedding, or its weight."
        )
    return weight


def bias_of(items: Any, bias: Any) -> Any:
    """The numbers to add to the logits: the caller's, or else the bias of a layer such as nn.Linear, or None."""
    if bias is not None or not isinstance(items, nn.Module):
        return bias
    own = getattr(items, "bias", None)
    return own if isinstance(own, Tensor) else None


def flatten_queries(queries: Any, positives: Any, *, finite: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return queries (..., d) as rows (b, d), and their targets (...) as (b,), without ignored targets."""
    tensor = _as_tensor(queries, "queries")
    if tensor.ndim < 2 or not tensor.shape[-1]:
        raise InputError(f"queries have shape {tuple(tensor.shape)}; expected (..., d) with at least one row.")
    rows = tensor.reshape(-1, tensor.shape[-1])
    if positives is None:
        return check_rows(rows, "queries", finite=finite), None
    targets = _as_tensor(positives, "positives")
    if targets.shape != tensor.shape[:-1] or targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(
            f"positives are {targets.dtype} of shape {tuple(targets.shape)}; expected integers of shape "
            f"{tuple(tensor.shape[:-1])}, one for each query."
        )
    targets = targets.reshape(-1)
    kept = targets != IGNORED
    if not bool(kept.any()):
        raise InputError(f"every one of the positives is {IGNORED}; expected at least one target that counts.")
    return check_rows(rows[kept.to(rows.device)], "queries", finite=finite), targets[kept]


def check_choice(value: Any, name: str, choices: Collection[str]) -> None:
    """MethodError unless the value is one of the choices."""
    if value not in choices:
        raise MethodError(f"{name} is {show(value)}; expected one of {', '.join(choices)}.")


def check_number(value: Any, name: str, low: float, high: float, *, below: bool = False) -> float:
    """Return a number from low to high as a float; below: high itself is not allowed."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and low <= value <= high and not (below and value == high):
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number from {low:g} to {'below ' if below else ''}{high:g}.")


def check_rows(values: Any, name: str, *, finite: bool = False) -> Tensor:
    """Return a matrix (b, d) as a float32 or float64 tensor without its gradient."""
    tensor = _as_tensor(values, name)
    if not tensor.is_floating_point():
        raise InputError(f"{name} are {tensor.dtype}; expected floating-point numbers.")
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise InputError(f"{name} have shape {tuple(tensor.shape)}; expected (b, d) with at least one row.")
    tensor = tensor if tensor.dtype == torch.float64 else tensor.float()
    if finite:
        _check_finite(tensor, name)
    return tensor


def _check_finite(tensor: Tensor, name: str) -> None:
    """InputError unless all numbers (b, d) are finite, also in float32, in which samplers keep them."""
    narrow = tensor.float()
    # A finite sum proves that all values are finite; the full check runs only when the sum is not, or overflows.
    if bool(torch.isfinite(narrow.sum())):
        return
    wrong = (~torch.isfinite(narrow)).any(1).nonzero()
    if not len(wrong):
        return
    row = int(wrong[0])
    if bool(torch.isfinite(tensor[row]).all()):
        raise InputError(f"{name} have numbers that are too large for float32, first in row {row}; scale them down.")
    raise InputError(
        f"{name} contain NaN or infinity, first in row {row}; expected finite numbers, and nothing was changed."
    )


def check_dim(rows: Tensor, dim: int, name: str = "queries", other: str = "classes") -> None:
    """InputError unless rows have the same number of dimensions as the others."""
    if rows.shape[1] != dim:
        raise InputError(
            f"the {name} have {rows.shape[1]} dimensions but the {other} have {dim}; use the same number for both."
        )


def check_items(items: Any, num_items: int) -> Tensor:
    """Return the class vectors (num_items, d) as finite float32; a layer stands for its weight."""
    rows = check_rows(weight_of(items), "items", finite=True).float()
    if len(rows) != num_items:
        raise InputError(
            f"there are {len(rows)} items but the sampler has {num_items} classes; pass one row per class."
        )
    return rows


def check_vector(values: Any, num_items: int, name: str) -> Tensor:
    """Return one finite number per class, (num_items,) float64."""
    tensor = _as_tensor(values, name)
    if tensor.shape != (num_items,):
        raise InputError(f"got {name} of shape {tuple(tensor.shape)}; expected ({num_items},), one number per class.")
    if tensor.is_complex():
        raise InputError(f"got {name} of {tensor.dtype}; expected real numbers.")
    tensor = tensor.double()
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"got {name} with NaN or infinity; expected finite numbers.")
    return tensor


def check_bias(bias: Any, num_items: int) -> Tensor:
    """Return what to add to the logits, (num_items,) float64, none too large for float32."""
    tensor = check_vector(bias, num_items, "bias")
    if not bool(torch.isfinite(tensor.float()).all()):
        raise InputError("got bias with numbers that are too large for float32; scale them down.")
    return tensor


def check_frequencies(frequencies: Any, num_items: int) -> Tensor:
    """Return one count per class, (num_items,) float64, none negative and at least one positive."""
    counts = check_vector(frequencies, num_items, "frequencies")
    if bool((counts < 0).any()) or not bool((counts > 0).any()):
        raise InputError("frequencies are negative or all 0; expected counts or shares with at least one above 0.")
    return counts


def check_range(ids: Tensor, num_items: int, name: str) -> None:
    """InputError unless every id is in 0 .. num_items - 1."""
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < num_items):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"{name} contain the class {wrong}; expected 0 to {num_items - 1}.")


def check_ids(ids: Any, b: int, num_items: int, *, shared: bool) -> Tensor:
    """Return class ids (j,), or (b, j) unless they are shared, as int64."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        kind = ids.dtype if isinstance(ids, Tensor) else show(ids)
        raise InputError(f"ids are {kind}; expected a tensor of integers.")
    if ids.ndim != 1 and (shared or ids.ndim != 2 or len(ids) != b):
        expected = "(j,)" if shared else f"({b}, j) or (j,)"
        raise InputError(f"ids have shape {tuple(ids.shape)}; expected {expected}.")
    check_range(ids, num_items, "ids")
    return ids.long()


def _as_tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: got {show(values)}; expected a tensor or an array of numbers.") from error
