"""The contract of every sampler of negatives: refresh it, draw classes from it, get their log q."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from softindex.arguments import check_count
from softindex.errors import InputError, SoftindexError
from softindex.train.checks import (
    bias_of,
    check_bias,
    check_dim,
    check_frequencies,
    check_ids,
    check_items,
    check_rows,
    flatten_queries,
)

__all__ = ["Negatives", "NotRefreshedError", "RefreshInput", "Sampler", "Tables"]

TABLES = "tables"
ABOUT = "about"
"""Name of the table that says which sampler the tables belong to, so that no other sampler loads them."""
CONTENTS = "contents"
"""Entry of that table with the names of the others; states of earlier versions do not have it."""
FORMAT = 2
"""Changes when tables get new names or a new meaning."""


class Negatives(NamedTuple):
    """Classes drawn as negatives, with the log-probability of each draw."""

    ids: Tensor
    """(b, n) int64; (n,) where all queries share the draws."""
    log_q: Tensor
    """Same shape, float32: normalised log-probability of each class under the distribution it was drawn from."""


class RefreshInput(NamedTuple):
    """The checked arguments of a refresh."""

    items: Tensor | None
    """(num_items, d) float32"""
    frequencies: Tensor | None
    """(num_items,) float64, not negative"""
    queries: Tensor | None
    """(b, d)"""
    bias: Tensor | None
    """(num_items,) float64"""

    def require_items(self) -> Tensor:
        """The class vectors; InputError if there are none."""
        if self.items is None:
            raise InputError("this sampler needs the vectors of the classes; call refresh(items).")
        return self.items

    def require_frequencies(self) -> Tensor:
        """The frequencies; InputError if there are none."""
        if self.frequencies is None:
            raise InputError(
                "this sampler draws by frequency; call refresh(frequencies=...) with one number per class."
            )
        return self.frequencies

    def positive_frequencies(self) -> Tensor:
        """The frequencies, where a class that never occurred counts as often as the rarest that did."""
        counts = self.require_frequencies()
        return torch.where(counts > 0, counts, counts[counts > 0].min())


class NotRefreshedError(SoftindexError, RuntimeError):
    """A sampler was used before its first refresh."""


class Tables(nn.Module):
    """The tensors a sampler draws from.  They move to other devices with the module but never change dtype."""

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
        # model.half() must not round cumulative sums, so only the device that fn chooses counts.
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(fn(tensor.new_empty(0)).device)
        return self


class Sampler(nn.Module):
    """A probability distribution q(i | query) over the classes 0 .. num_items - 1, in short a law.

    A subclass defines how to compute its tables (`_fit`), draw (`_draw`) and evaluate log q (`_log_q`).  `refresh`
    replaces all tables at once.  Between two refreshes both the draws and `log_q` come from the same tables, so draws
    from an index that is behind the model are still weighted correctly.

    Args:
        num_items: Number of classes.
    """

    needs_refresh = True
    independent = True
    """Whether the draws of a call are independent, so that one call for 2 n draws is as good as two for n each."""
    assumed: ClassVar[Mapping[str, Any]] = {}
    """Constructor arguments that states of earlier versions do not have, with the values they had."""

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.num_items = check_count(num_items, "num_items")
        self.register_buffer("_device_marker", torch.empty(0), persistent=False)
        self.tables: Tables | None = None
        if not self.needs_refresh:
            self.tables = self._label(Tables({}))

    @property
    def device(self) -> torch.device:
        """Device on which the sampler draws; change it with `.to()` like that of any module."""
        marker = self._buffers["_device_marker"]
        assert marker is not None
        return marker.device

    def refresh(
        self,
        items: Any = None,
        *,
        frequencies: Any = None,
        queries: Any = None,
        bias: Any = None,
        positives: Any = None,
    ) -> None:
        """Recompute the tables from the current classes.  Each sampler uses the arguments it needs.

        Args:
            items: Class vectors, (num_items, d), or the layer that has them as its weight.
            frequencies: How often each class occurs as a target, (num_items,).
            queries: Some recent queries, (..., d).
            bias: Numbers added to the logits, (num_items,); None uses the bias of the layer, if it has one.
            positives: Targets of the queries, (...): queries whose target is -100 are left out.

        Raises:
            InputError: When an argument is wrong or one is missing.  The old tables then stay in use.
        """
        self.install(self.fit(items, frequencies=frequencies, queries=queries, bias=bias, positives=positives))

    def fit(
        self,
        items: Any = None,
        *,
        frequencies: Any = None,
        queries: Any = None,
        bias: Any = None,
        positives: Any = None,
    ) -> Tables:
        """Compute the tables of a refresh without using them yet, for example in another thread; see `install`.

        Args:
            items: Class vectors, (num_items, d), or the layer that has them as its weight.
            frequencies: How often each class occurs as a target, (num_items,).
            queries: Some recent queries, (..., d).
            bias: Numbers added to the logits, (num_items,); None uses the bias of the layer, if it has one.
            positives: Targets of the queries, (...): queries whose target is -100 are left out.

        Returns:
            Tables for `install`.
        """
        vectors = None if items is None else check_items(items, self.num_items)
        counts = None if frequencies is None else check_frequencies(frequencies, self.num_items)
        if queries is None and positives is not None:
            raise InputError("positives say which queries count, but there are no queries; pass both or neither.")
        recent = None if queries is None else flatten_queries(queries, positives, finite=True)[0]
        if vectors is not None and recent is not None:
            check_dim(recent, vectors.shape[1])
        bias = bias_of(items, bias)
        checked_bias = None if bias is None else check_bias(bias, self.num_items)
        with torch.no_grad():
            return self._label(self._fit(RefreshInput(vectors, counts, recent, checked_bias)))

    def install(self, tables: Tables) -> None:
        """Draw from these tables from now on.

        Call it from the thread that draws, as a `Refresher` does: draws that another thread is making may otherwise
        get the `log_q` of the new tables.

        Args:
            tables: Result of `fit`.
        """
        self.tables = tables.to(self.device)

    def sample(
        self,
        queries: Tensor,
        n: int,
        *,
        shared: bool = False,
        positives: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Negatives:
        """Draw n classes per query with replacement, each from q, and independently unless the sampler says otherwise.

        Args:
            queries: Query vectors, (b, d).
            n: Number of draws per query.
            shared: Draw n classes for the entire batch from the mean of the queries' distributions; `log_q` is that
                of the mixture.
            positives: Targets of the queries, (b,), for samplers that draw from them.
            generator: Source of randomness; None uses torch's global one.

        Returns:
            Ids and their log q, (b, n), or (n,) if shared.
        """
        rows = self._check_queries(queries)
        count = check_count(n, "n")
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            if shared:
                ids, log_q = self._draw_shared(rows, count, positives, generator)
            else:
                ids, log_q = self._draw(rows, count, positives, generator)
        return Negatives(ids, log_q.float())

    def log_q(self, queries: Tensor, ids: Tensor, *, shared: bool = False) -> Tensor:
        """Return the normalised log-probabilities of given classes.

        Args:
            queries: Query vectors, (b, d).
            ids: Classes of each query, (b, j), or of all queries, (j,).
            shared: Use the mean of the queries' distributions; `ids` is then (j,).

        Returns:
            float32, (b, j), or (j,) if shared.
        """
        rows = self._check_queries(queries)
        if isinstance(ids, Tensor):
            self._check_device(ids, "ids")
        classes = check_ids(ids, len(rows), self.num_items, shared=shared)
        with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
            per_query = classes if classes.ndim == 2 else classes.expand(len(rows), -1)
            log_q = self._log_q(rows, per_query)
            return (_log_mixture(log_q) if shared else log_q).float()

    def _fit(self, inputs: RefreshInput) -> Tables:
        """Compute tables on any device; the current tables may serve as a starting point."""
        return Tables({})

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def _draw_shared(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        # The numbers of draws per query differ by at most one: this has less variance than drawing the query as well.
        b = len(queries)
        order = torch.randperm(b, generator=generator, device=queries.device)
        rows = order.repeat(-(-n // b))[:n]
        ids, _ = self._draw(queries[rows], 1, None if positives is None else positives[rows], generator)
        ids = ids[:, 0]
        return ids, _log_mixture(self._log_q(queries, ids.expand(b, -1)))

    def _options(self) -> dict[str, Any]:
        """The constructor arguments that must agree when tables are loaded."""
        return {}

    def _about(self) -> dict[str, Any]:
        return {"format": FORMAT, "sampler": type(self).__name__, "num_items": self.num_items, **self._options()}

    def _label(self, tables: Tables) -> Tables:
        about = {**self._about(), CONTENTS: [name for name in tables._buffers if name != ABOUT]}
        tables.register_buffer(ABOUT, torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8))
        return tables

    def _ready(self) -> Tables:
        if self.tables is None:
            raise NotRefreshedError(f"this {type(self).__name__} has no tables yet; call refresh() before using it.")
        return self.tables

    def _check_queries(self, queries: Tensor) -> Tensor:
        rows = check_rows(queries, "queries")
        self._ready()
        self._check_device(rows, "queries")
        return rows

    def _check_device(self, tensor: Tensor, name: str) -> None:
        if tensor.device != self.device:
            raise InputError(
                f"the {name} are on {tensor.device} but the sampler is on {self.device}; move one of them with .to()."
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        begin = f"{prefix}{TABLES}."
        saved = {name[len(begin) :]: tensor for name, tensor in state_dict.items() if name.startswith(begin)}
        if saved:
            self._check_about(saved)
            self.tables = self._tables_to_load(saved)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _tables_to_load(self, saved: Mapping[str, Tensor]) -> Tables:
        """Tables for torch to load into: their shapes depend on what the sampler was refreshed with."""
        return Tables({name: torch.empty_like(tensor, device=self.device) for name, tensor in saved.items()})

    def _check_about(self, saved: Mapping[str, Tensor]) -> None:
        """InputError if saved tables belong to a sampler with other arguments."""
        about = {**self.assumed, **(json.loads(bytes(saved[ABOUT].tolist())) if ABOUT in saved else {})}
        if about.get("format") != FORMAT:
            raise InputError(
                "the state was saved by another version of softindex; call refresh() instead of loading it."
            )
        for name, expected in self._about().items():
            if about.get(name) != expected:
                raise InputError(
                    f"the saved sampler has {name} {about.get(name)} but this one has {expected}; "
                    "create this one with the same arguments."
                )
        missing = [name for name in about.get(CONTENTS, ()) if name not in saved]
        if missing:
            raise InputError(
                f"the saved sampler is not intact ({', '.join(missing)} missing); call refresh() instead of loading it."
            )


def _log_mixture(log_q: Tensor) -> Tensor:
    """log of the mean over the queries, (j,) from (b, j)."""
    return torch.logsumexp(log_q, 0) - math.log(len(log_q))
