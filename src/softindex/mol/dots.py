"""Similarities without weights, as torch modules: the dot product, and MaxSim, a sum of largest dot products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_temperature
from softindex.errors import InputError, show
from softindex.mol.spec import ItemSide, SimilaritySpec

__all__ = ["DotProduct", "MaxSim", "as_float32", "as_tensor"]


class DotProduct(nn.Module):
    """Dot product <q, x> / temperature, or cosine / temperature.

    Args:
        dim: Dimensions of queries and items.
        temperature: Divides the dot products.
        normalised: Scale queries and items to length one first, which gives the cosine.
    """

    def __init__(self, dim: int, *, temperature: float = 1.0, normalised: bool = False) -> None:
        super().__init__()
        self.dim, self.temperature = check_count(dim, "dim"), check_temperature(temperature)
        self.normalised = normalised

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, d) and items (m, d), shared by all queries, or (b, m, d)."""
        if self.normalised:
            queries, items = functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1)
        dots = queries @ items.T if items.dim() == 2 else torch.einsum("bd,bmd->bm", queries, items)
        return dots / self.temperature

    def spec(self) -> SimilaritySpec:
        """One component on each side, and no gate."""
        return SimilaritySpec(1, 1, self.dim, self.temperature, self.normalised, None, None, False)

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, d) as components (m, 1, d)."""
        given = as_tensor(items).float()
        return ItemSide(as_float32(functional.normalize(given, dim=-1) if self.normalised else given)[:, None], None)


class MaxSim(nn.Module):
    """MaxSim: sum_p max_r <q_p, x_r> / temperature.  Each query vector is matched with the nearest item vector.

    Args:
        query_components: Number of vectors of a query.
        item_components: Number of vectors of an item.
        component_dim: Dimensions of a vector.
        temperature: Divides the sum.
    """

    def __init__(
        self, query_components: int, item_components: int, component_dim: int, *, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.query_components = check_count(query_components, "query_components")
        self.item_components = check_count(item_components, "item_components")
        self.component_dim = check_count(component_dim, "component_dim")
        self.temperature = check_temperature(temperature)

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, P_q, d) and items (m, P_x, d), shared by all, or (b, m, P_x, d)."""
        pattern = "bpd,mrd->bmpr" if items.dim() == 3 else "bpd,bmrd->bmpr"
        dots = torch.einsum(pattern, functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1))
        return dots.amax(dim=-1).sum(dim=-1) / self.temperature

    def spec(self) -> SimilaritySpec:
        """No gate.  A sum over P_q components is their mean at a temperature P_q times smaller."""
        temperature = self.temperature / self.query_components
        return SimilaritySpec(
            self.query_components, self.item_components, self.component_dim, temperature, True, None, None, False
        )

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, P_x, d) as components of length one."""
        return ItemSide(as_float32(functional.normalize(as_tensor(items).float(), dim=-1)), None)


def as_tensor(items: Any) -> Tensor:
    """Items as a tensor of numbers."""
    try:
        return torch.as_tensor(items)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"items are {show(items)}; expected an array or a tensor of numbers.") from error


def as_float32(tensor: Any) -> Any:
    """A tensor as a NumPy array of float32."""
    return tensor.detach().to("cpu", torch.float32).numpy().astype(np.float32)
