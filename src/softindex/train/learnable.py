"""MIDX whose codebooks are parameters, trained with the model towards the softmax."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softindex.arguments import check_count
from softindex.errors import InputError, MethodError
from softindex.train.codebooks import Codebooks, fit_codebooks, query_metric
from softindex.train.contract import Given, Tables, check_dim, check_rows, check_vector, weight_of
from softindex.train.midx import MIDXSampler
from softindex.train.multi_index import CodewordLaw

__all__ = ["CodebookLoss", "LearnableMIDXSampler"]


class CodebookLoss(NamedTuple):
    """What the codebooks of a `LearnableMIDXSampler` are trained with; add both, weighted, to the loss of the model."""

    reconstruction: Tensor
    """Mean squared distance of drawn classes from their codewords."""
    kl: Tensor
    """KL(q || softmax), estimated from the draws."""


class LearnableMIDXSampler(MIDXSampler):
    """A `MIDXSampler` with codebooks `first` and `second` (codewords, dim) that an optimiser may change.

    The first refresh sets them by k-means; later ones leave them as they are and give the classes the codes of their
    nearest codewords.  Draws and log_q follow the codebooks at once.  `codebook_loss` gives their gradients from a few
    draws, at a cost that does not depend on the number of classes.
    """

    def __init__(self, num_items: int, dim: int, **options: Any) -> None:
        super().__init__(num_items, **options)
        if self.residual not in ("uniform", "weighted"):
            raise MethodError(f'residual is {self.residual!r}; codebooks are learned with "uniform" or "weighted".')
        shape = (self.codewords, check_count(dim, "dim"))
        self.first = nn.Parameter(torch.zeros(shape, dtype=torch.float32))
        self.second = nn.Parameter(torch.zeros(shape, dtype=torch.float32))
        half = (dim + 1) // 2
        masks = torch.ones(2, dim, dtype=torch.float32)
        if self.quantizer == "pq":
            masks[0, half:], masks[1, :half] = 0, 0
        self.register_buffer("_masks", masks, persistent=False)

    @property
    def books(self) -> tuple[Tensor, Tensor]:
        """The two codebooks; those of a product quantizer have zeros in the other's half."""
        masks = self._buffers["_masks"]
        assert masks is not None
        return self.first * masks[0], self.second * masks[1]

    def install(self, tables: Tables) -> None:
        """Draw from these tables from now on; the first ones set the codebooks."""
        if self.tables is None:
            with torch.no_grad():
                self.first.copy_(tables["first"])
                self.second.copy_(tables["second"])
        super().install(tables)

    def _fit_biased(self, given: Given, bias: Tensor) -> dict[str, Tensor]:
        raise InputError('codebooks are learned with a bias only where residual="weighted"; make the sampler so.')

    def _fit_codebooks(self, given: Given) -> Codebooks:
        items = given.need_items()
        check_dim(items, self.first.shape[1])
        if self.quantizer == "pq":
            # A metric of the queries would mix the halves that a product quantizer keeps apart.
            given = given._replace(queries=None)
        if self.tables is None:
            return super()._fit_codebooks(given)
        first, second = (book.detach().float().cpu().numpy() for book in self.books)
        found = fit_codebooks(
            items.cpu().numpy(),
            self.codewords,
            self.quantizer,
            metric=None if given.queries is None else query_metric(given.queries.float().cpu().numpy()),
            start=(first, second),
            iterations=0,
            seed=self.seed,
            threads=self.threads,
        )
        return Codebooks(first, second, found.codes)

    def _law(self, queries: Tensor) -> CodewordLaw:
        first, second = self.books
        return CodewordLaw(self._ready(), queries.float(), (first.float(), second.float()))

    def codebook_loss(
        self,
        queries: Tensor,
        items: Any,
        m: int = 20,
        *,
        bias: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> CodebookLoss:
        """Return the two losses of the codebooks from m draws for each query (b, d); items (n, d) of the classes.

        bias (n,): what is added to the logits of the softmax.  Gradients reach the codebooks alone, not the queries,
        items or bias.  Draws that `unigram_mix` would make by frequency are not among these.
        """
        count = check_count(m, "m")
        if count < 2:
            raise InputError("m is 1; a difference to the softmax shows from two draws on.")
        rows = self._check_queries(queries)
        weight = check_rows(weight_of(items), "items")
        if weight.shape != (self.num_items, rows.shape[1]):
            raise InputError(f"items have shape {tuple(weight.shape)}; expected {(self.num_items, rows.shape[1])}.")
        added = None if bias is None else check_vector(bias, self.num_items, "bias")
        with torch.autocast(rows.device.type, enabled=False):
            law = self._law(rows)
            with torch.no_grad():
                ids = law.draw(count, generator)
                vectors = weight[ids].float()
                logits = torch.einsum("bd,bmd->bm", rows.float(), vectors).double()
                logits = logits if added is None else logits + added[ids]
            log_q = law.log_q(ids)
            ratio = log_q.detach() - logits
            # KL has the gradient E[(log q - logit) grad log q] over draws from q, whatever constant is taken off.
            centred = (ratio - ratio.mean(1, keepdim=True)) * (count / (count - 1))
            push = (centred * log_q).mean()
            value = (ratio.mean(1) + torch.logsumexp(-ratio, 1)).mean() - math.log(count)
            bucket = self._ready()["bucket"][ids].long()
            first, second = self.books
            near = (first[bucket // self.codewords] + second[bucket % self.codewords]).float()
            reconstruction = ((vectors - near) ** 2).sum(-1).mean()
        return CodebookLoss(reconstruction, (value + push - push.detach()).float())
