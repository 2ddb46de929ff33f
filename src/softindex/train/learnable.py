"""LearnableMIDXSampler: MIDX with codebooks that are parameters and train with the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softindex.arguments import check_count
from softindex.errors import InputError, MethodError
from softindex.train.checks import bias_of, check_bias, check_dim, check_rows, weight_of
from softindex.train.codebooks import Codebooks, fit_codebooks
from softindex.train.codeword_law import CodewordLaw
from softindex.train.contract import RefreshInput, Tables
from softindex.train.midx import MIDXSampler

__all__ = ["CodebookLoss", "LearnableMIDXSampler"]


class CodebookLoss(NamedTuple):
    """The two losses of the codebooks of a `LearnableMIDXSampler`; add both, weighted, to the loss of the model."""

    reconstruction: Tensor
    """Mean squared distance between drawn classes and their codewords."""
    kl: Tensor
    """KL(q || softmax), estimated from the draws."""


class LearnableMIDXSampler(MIDXSampler):
    """A `MIDXSampler` whose codebooks `first` and `second`, (codewords, dim), are parameters for an optimiser.

    The first refresh sets the codebooks by k-means.  Later ones keep them and assign each class the codes of its
    nearest codewords.  Draws and `log_q` follow the codebooks immediately.  `codebook_loss` gives their gradients from
    a few draws, at a cost that does not depend on the number of classes.

    Args:
        num_items: Number of classes.
        dim: Dimensions of the class vectors.
        **options: As for `MIDXSampler`; `residual` must be "uniform" or "weighted", and `codebooks` 2.
    """

    def __init__(self, num_items: int, dim: int, **options: Any) -> None:
        super().__init__(num_items, **options)
        if self.residual not in ("uniform", "weighted"):
            raise MethodError(f'residual is {self.residual!r}; learned codebooks need "uniform" or "weighted".')
        if self.codebooks != 2:
            raise MethodError(f"codebooks is {self.codebooks}; expected 2 where codebooks are learned.")
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
        """The two codebooks, each (codewords, dim); those of a product quantizer are zero in the other's half."""
        masks = self._buffers["_masks"]
        assert masks is not None
        return self.first * masks[0], self.second * masks[1]

    def install(self, tables: Tables) -> None:
        """Draw from these tables from now on; the first tables also set the codebooks.

        Args:
            tables: Result of `fit`.
        """
        if self.tables is None:
            with torch.no_grad():
                self.first.copy_(tables["first"])
                self.second.copy_(tables["second"])
        super().install(tables)

    def _tables_to_load(self, saved: Mapping[str, Tensor]) -> Tables:
        dim = self.first.shape[1]
        if saved["first"].shape[1] != dim:
            raise InputError(
                f"the saved sampler has dim {saved['first'].shape[1]} but this one has {dim}; create this one with the "
                "same arguments."
            )
        return super()._tables_to_load(saved)

    def _fit_biased(self, inputs: RefreshInput, bias: Tensor) -> dict[str, Tensor]:
        raise InputError(
            'learned codebooks take a bias only with residual="weighted"; create the sampler with it, '
            "or pass the weight of the layer without its bias."
        )

    def _fit_codebooks(self, inputs: RefreshInput) -> Codebooks:
        items = inputs.require_items()
        check_dim(items, self.first.shape[1], "items", "codebooks")
        if not bool(torch.isfinite(torch.stack(self.books)).all()):
            raise InputError("the learned codebooks contain NaN or infinity; lower their learning rate.")
        if self.quantizer == "pq":
            # The metric of the queries would mix the halves that a product quantizer keeps apart.
            inputs = inputs._replace(queries=None)
        if self.tables is None:
            return super()._fit_codebooks(inputs)
        books = torch.stack(self.books).detach().float().cpu().numpy()
        fitted = fit_codebooks(
            items.cpu().numpy(),
            self.codewords,
            self.quantizer,
            metric=self._metric(inputs.queries),
            start=books,
            iterations=0,
            seed=self.seed,
            threads=self.threads,
        )
        return Codebooks(books, fitted.codes)

    def _law(self, queries: Tensor) -> CodewordLaw:
        first, second = self.books
        return CodewordLaw(self._ready(), queries.float(), (first.float(), second.float()))

    def codebook_loss(
        self,
        queries: Tensor,
        items: Any,
        n: int = 20,
        *,
        bias: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> CodebookLoss:
        """Return the two losses of the codebooks, estimated from n draws per query.

        Gradients reach the codebooks only, not the queries, items or bias.  These draws never come from `unigram_mix`.

        Args:
            queries: Query vectors, (b, d).
            items: Class vectors, (num_items, d), or the layer that has them as its weight.
            n: Number of draws per query, at least 2.
            bias: Numbers added to the logits of the softmax, (num_items,); None uses the bias of the layer, if it has
                one.
            generator: Source of randomness; None uses torch's global one.

        Returns:
            Reconstruction loss and KL(q || softmax), both scalars.

        Raises:
            InputError: When n is 1, or a shape is wrong.
        """
        count = check_count(n, "n")
        if count < 2:
            raise InputError("n is 1; the distance from the softmax needs at least two draws.")
        rows = self._check_queries(queries)
        weight = check_rows(weight_of(items), "items")
        if weight.shape != (self.num_items, rows.shape[1]):
            raise InputError(f"items have shape {tuple(weight.shape)}; expected {(self.num_items, rows.shape[1])}.")
        bias = bias_of(items, bias)
        checked_bias = None if bias is None else check_bias(bias, self.num_items)
        with torch.autocast(rows.device.type, enabled=False):
            law = self._law(rows)
            with torch.no_grad():
                ids = law.draw(count, generator)
                vectors = weight[ids].float()
                logits = torch.einsum("bd,bmd->bm", rows.float(), vectors).double()
                logits = logits if checked_bias is None else logits + checked_bias[ids]
            return CodebookLoss(self._reconstruction(ids, vectors), _reverse_kl(law.log_q(ids), logits))

    def _reconstruction(self, ids: Tensor, vectors: Tensor) -> Tensor:
        cluster = self._ready()["cluster"][ids].long()
        first, second = self.books
        quantised = (first[cluster // self.codewords] + second[cluster % self.codewords]).float()
        return ((vectors - quantised) ** 2).sum(-1).mean()


def _reverse_kl(log_q: Tensor, logits: Tensor) -> Tensor:
    """KL(q || softmax) and its gradient, estimated from draws (b, n) from q."""
    count = log_q.shape[1]
    ratio = log_q.detach() - logits
    # The gradient is E[(log q - logit) grad log q] over draws from q; subtracting a constant leaves it unchanged.
    centred = (ratio - ratio.mean(1, keepdim=True)) * (count / (count - 1))
    push = (centred * log_q).mean()
    value = (ratio.mean(1) + torch.logsumexp(-ratio, 1)).mean() - math.log(count)
    return (value + push - push.detach()).float()
