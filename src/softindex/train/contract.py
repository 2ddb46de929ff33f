"""What every sampler of negatives is: a law over classes that can be refreshed, drawn from, and asked for its log q."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from softindex.arguments import check_count
from softindex.errors import InputError, SoftindexError, show

__all__ = [
    "Given",
    "Negatives",
    "NotRefreshedError",
    "Sampler",
    "Tables",
    "check_dim",
    "check_items",
    "check_number",
    "check_range",
    "check_rows",
    "check_vector",
    "weight_of",
]

TABLES = "tables"
ABOUT = "about"
"""In all tables: of what sampler they are, so that another does not load them."""


class Negatives(NamedTuple):
    """Classes drawn as negatives, and the law they were drawn from."""

    ids: Tensor
    """(b, m) int64; (m,) where all queries share them."""
    log_q: Tensor
    """Of the same shape, float32: the normalised log-probability of each under the law it was drawn from."""


class Given(NamedTuple):
    """What a refresh was given, checked."""

    items: Tensor | None
    """(n, d) float32"""
    frequencies: Tensor | None
    """(n,) float64, from 0 on"""
    queries: Tensor | None
    """(b, d)"""
    bias: Tensor | None
    """(n,) float64"""

    def need_items(self) -> Tensor:
        """The items; InputError where there are none."""
        if self.items is None:
            raise InputError("the sampler needs the vectors of the classes; give refresh(items).")
        return self.items

    def need_frequencies(self) -> Tensor:
        """The frequencies; InputError where there are none."""
        if self.frequencies is None:
            raise InputError(
                "the sampler draws by frequency; give refresh(frequencies=...), one number for each class."
            )
        return self.frequencies

    def seen(self) -> Tensor:
        """The frequencies, where a class that was never seen counts as the rarest that was."""
        counts = self.need_frequencies()
        return torch.where(counts > 0, counts, counts[counts > 0].min())


class NotRefreshedError(SoftindexError, RuntimeError):
    """A sampler was asked for draws before it had seen the classes."""


class Tables(nn.Module):
    """The tensors a sampler draws from.  They follow the module to other devices, and never change their dtype."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._buffers[name]
        assert tensor is not None
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # model.half() must not round cumulative sums: of what fn does, only the device is taken over.
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(fn(tensor.new_empty(0)).device)
        return self


class Sampler(nn.Module):
    """A law q(i | query) over the classes 0 .. num_items - 1.

    A subclass says how its tables are made (`_fit`), how it draws (`_draw`) and what its law is (`_log_q`).  The
    tables are replaced as a whole by `refresh`; until then draws come from the old ones, and log_q describes the
    tables that were drawn from, so draws from an index that is behind the model are still weighted rightly.
    """

    needs_refresh = True

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.num_items = check_count(num_items, "num_items")
        self.register_buffer("_here", torch.empty(0), persistent=False)
        self.tables: Tables | None = None
        if not self.needs_refresh:
            self.tables = self._label(Tables({}))

    @property
    def device(self) -> torch.device:
        """Where the sampler draws; move it as any module."""
        here = self._buffers["_here"]
        assert here is not None
        return here.device

    def refresh(self, items: Any = None, *, frequencies: Any = None, queries: Any = None, bias: Any = None) -> None:
        """Look at the classes again.

        items (n, d): their vectors.  frequencies (n,): how often each occurs as a target.  queries (b, d): some recent
        ones.  bias (n,): what is added to the logits.  A sampler takes of these what it needs.  Where one of them is
        wrong, nothing changes and the old tables stay in use.
        """
        self.install(self.fit(items, frequencies=frequencies, queries=queries, bias=bias))

    def fit(self, items: Any = None, *, frequencies: Any = None, queries: Any = None, bias: Any = None) -> Tables:
        """Make the tables of a refresh without putting them to use, as another thread may; see `install`."""
        rows = None if items is None else check_items(items, self.num_items)
        counts = None if frequencies is None else _check_frequencies(frequencies, self.num_items)
        asked = None if queries is None else check_rows(queries, "queries", finite=True)
        if rows is not None and asked is not None:
            check_dim(asked, rows.shape[1])
        added = None if bias is None else check_vector(bias, self.num_items, "bias")
        with torch.no_grad():
            return self._label(self._fit(Given(rows, counts, asked, added)))

    def _options(self) -> dict[str, Any]:
        """The arguments without which tables of this sampler make no sense."""
        return {}

    def _about(self) -> dict[str, Any]:
        return {"sampler": type(self).__name__, "num_items": self.num_items, **self._options()}

    def _label(self, tables: Tables) -> Tables:
        tables.register_buffer(ABOUT, torch.tensor(list(json.dumps(self._about()).encode()), dtype=torch.uint8))
        return tables

    def install(self, tables: Tables) -> None:
        """Draw from these tables from now on."""
        self.tables = tables.to(self.device)

    def sample(
        self,
        queries: Tensor,
        m: int,
        *,
        shared: bool = False,
        positives: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Negatives:
        """Draw m classes for each query (b, d), independently and with replacement.

        shared: m classes for all queries together, from the mean of their laws; log_q is that of the mixture.
        positives (b,): the targets of the queries, for a sampler that draws from them.
        """
        rows = self._check_queries(queries)
        count = check_count(m, "m")
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            if shared:
                ids, log_q = self._draw_shared(rows, count, positives, generator)
            else:
                ids, log_q = self._draw(rows, count, positives, generator)
        return Negatives(ids, log_q.float())

    def log_q(self, queries: Tensor, ids: Tensor, *, shared: bool = False) -> Tensor:
        """Return the normalised log-probabilities of given classes: ids (b, j) of each query, or (j,) of all: (b, j).

        shared: under the mixture of the queries' laws; ids (j,), result (j,).
        """
        rows = self._check_queries(queries)
        classes = self._check_ids(ids, len(rows), shared)
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            spread = classes if classes.ndim == 2 else classes.expand(len(rows), -1)
            log_q = self._log_q(rows, spread)
            return (_mean_of_laws(log_q) if shared else log_q).float()

    def _fit(self, given: Given) -> Tables:
        """Make tables of what was given, on any device; the present ones may be a start."""
        return Tables({})

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def _draw_shared(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        # Every query gives as many draws as any other, but for one: the mean of the laws with less noise.
        b = len(queries)
        order = torch.randperm(b, generator=generator, device=queries.device)
        rows = order.repeat(-(-m // b))[:m]
        ids, _ = self._draw(queries[rows], 1, None if positives is None else positives[rows], generator)
        ids = ids[:, 0]
        return ids, _mean_of_laws(self._log_q(queries, ids.expand(b, -1)))

    def _ready(self) -> Tables:
        if self.tables is None:
            raise NotRefreshedError(
                f"the {type(self).__name__} has not seen the classes yet; call its refresh() before it is used."
            )
        return self.tables

    def _check_queries(self, queries: Tensor) -> Tensor:
        rows = check_rows(queries, "queries")
        self._ready()
        if rows.device != self.device:
            raise InputError(
                f"the queries are on {rows.device} but the sampler is on {self.device}; move one of them with .to()."
            )
        return rows

    def _check_ids(self, ids: Tensor, b: int, shared: bool) -> Tensor:
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InputError(f"ids are {_kind(ids)}; expected a tensor of integers.")
        if ids.ndim != 1 and (shared or ids.ndim != 2 or len(ids) != b):
            wanted = "(j,)" if shared else f"({b}, j) or (j,)"
            raise InputError(f"ids have shape {tuple(ids.shape)}; expected {wanted}.")
        if ids.device != self.device:
            raise InputError(
                f"the ids are on {ids.device} but the sampler is on {self.device}; move one of them with .to()."
            )
        check_range(ids, self.num_items, "ids")
        return ids.long()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        begin = f"{prefix}{TABLES}."
        kept = {name[len(begin) :]: tensor for name, tensor in state_dict.items() if name.startswith(begin)}
        if kept:
            self._check_about(kept)
            # Tables have the shapes of what they were made of: make room, then load into it as into any module.
            self.tables = Tables({name: torch.empty_like(one, device=self.device) for name, one in kept.items()})
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _check_about(self, kept: Mapping[str, Tensor]) -> None:
        """InputError if saved tables are of another sampler than this."""
        saved = json.loads(bytes(kept[ABOUT].tolist())) if ABOUT in kept else {}
        for name, here in self._about().items():
            if saved.get(name) != here:
                raise InputError(
                    f"the saved sampler has {name} {saved.get(name)} but this one {here}; make both with the same."
                )


def _mean_of_laws(log_q: Tensor) -> Tensor:
    return torch.logsumexp(log_q, 0) - math.log(len(log_q))


def check_range(ids: Tensor, num_items: int, name: str) -> None:
    """InputError unless all of the classes are in 0 .. num_items - 1."""
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < num_items):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"{name} hold the class {wrong}; expected 0 to {num_items - 1}.")


def weight_of(items: Any) -> Any:
    """The vectors of the classes: the weight of a layer, such as nn.Embedding or nn.Linear, or what was given."""
    return items.weight if isinstance(items, nn.Module) and isinstance(items.weight, Tensor) else items


def check_rows(values: Any, name: str, *, finite: bool = False) -> Tensor:
    """Return a matrix (b, d) as a tensor of float32 or float64 without its gradient; name: what the caller calls it."""
    tensor = _as_tensor(values, name)
    if not tensor.is_floating_point():
        raise InputError(f"{name} are {tensor.dtype}; expected floating-point numbers.")
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise InputError(f"{name} have shape {tuple(tensor.shape)}; expected (b, d), one row each and at least one.")
    tensor = tensor if tensor.dtype == torch.float64 else tensor.float()
    # A sum is finite only if all are, unless it overflows: a cheap look before the thorough one.
    if finite and not bool(torch.isfinite(tensor.sum())):
        wrong = (~torch.isfinite(tensor)).any(1).nonzero()
        if len(wrong):
            raise InputError(
                f"{name} hold NaN or infinity, first in row {int(wrong[0])}; expected finite numbers, nothing changed."
            )
    return tensor


def check_dim(rows: Tensor, dim: int) -> None:
    """InputError unless queries have as many dimensions as the classes."""
    if rows.shape[1] != dim:
        raise InputError(f"the queries have {rows.shape[1]} dimensions but the classes {dim}; expected the same.")


def check_items(items: Any, n: int) -> Tensor:
    """Return the vectors of the classes (n, d), finite, float32; a layer stands for its weight."""
    rows = check_rows(weight_of(items), "items", finite=True).float()
    if len(rows) != n:
        raise InputError(f"there are {len(rows)} items but the sampler is for {n} classes; give one row for each.")
    return rows


def check_vector(values: Any, n: int, name: str) -> Tensor:
    """Return a finite number for each class, (n,) float64; name: what the caller calls it."""
    tensor = _as_tensor(values, name)
    if tensor.shape != (n,):
        raise InputError(f"{name} have shape {tuple(tensor.shape)}; expected ({n},), one number for each class.")
    tensor = tensor.double()
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{name} hold NaN or infinity; expected finite numbers.")
    return tensor


def check_number(value: Any, name: str, low: float, high: float, *, below: bool = False) -> float:
    """Return a number from low to high, or below high, as a float; name: what the caller calls it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and low <= value <= high and not (below and value == high):
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number from {low:g} to {'below ' if below else ''}{high:g}.")


def _check_frequencies(frequencies: Any, n: int) -> Tensor:
    counts = check_vector(frequencies, n, "frequencies")
    if bool((counts < 0).any()) or not bool((counts > 0).any()):
        raise InputError("frequencies are negative or all 0; expected counts or shares, one of them above 0 at least.")
    return counts


def _as_tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} are {show(values)}; expected a tensor or an array of numbers.") from error


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else show(value)
