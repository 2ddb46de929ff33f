"""MIDXSampler: fits a multi-index to the classes, and draws from its law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from softindex.arguments import check_count, check_seed, check_threads
from softindex.errors import MethodError
from softindex.train.calibration import calibrate
from softindex.train.codebooks import QUANTIZERS, Codebooks, fit_codebooks, query_metric
from softindex.train.contract import Given, Sampler, Tables, check_dim, check_number
from softindex.train.drawing import cumulate, find, log_shares
from softindex.train.multi_index import BucketSoftmax, CodewordLaw, ThreeSteps, invert, weigh

__all__ = ["RESIDUALS", "MIDXSampler"]

RESIDUALS = ("uniform", "weighted", "exact", "oracle")
LIGHTEST = 1e-12
"""What the rarest class counts at least, of what the most frequent counts: k-means chooses among all."""


class MIDXSampler(Sampler):
    """Draw classes nearly as often as the softmax does, at a cost that does not depend on their number.

    quantizer: "rq", the second codebook is for what the first leaves; "pq", each is for half of the coordinates.
    residual: what is done about the difference between a class and its codewords.

    - "uniform": nothing, as published; classes with the same codes are drawn alike.
    - "weighted": each class has a weight, which makes a bias exact; where refresh is given queries, the weights make
      each class as frequent over these as the softmax would.
    - "exact": a softmax of the vectors among the classes with the same codes; reads all of them.
    - "oracle": the three steps without any approximation, which is the softmax itself; reads every class.

    unigram_mix: the part of draws that come by frequency instead, which bounds what one draw can weigh.
    frequency_power: classes count in the codebooks by their frequency to this power, where refresh is given any.
    Where it is given queries, codewords are near in the products with those instead of in distance.
    """

    def __init__(
        self,
        num_items: int,
        *,
        codewords: int = 64,
        quantizer: str = "rq",
        residual: str = "uniform",
        unigram_mix: float = 0.0,
        frequency_power: float = 0.5,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(num_items)
        self.codewords = check_count(codewords, "codewords")
        if quantizer not in QUANTIZERS:
            raise MethodError(f"quantizer is {quantizer!r}; expected one of {', '.join(QUANTIZERS)}.")
        if residual not in RESIDUALS:
            raise MethodError(f"residual is {residual!r}; expected one of {', '.join(RESIDUALS)}.")
        self.quantizer, self.residual = quantizer, residual
        self.unigram_mix = check_number(unigram_mix, "unigram_mix", 0, 1, below=True)
        self.frequency_power = check_number(frequency_power, "frequency_power", 0, 2)
        self.seed, self.threads = check_seed(seed), check_threads(threads)

    def _options(self) -> dict[str, Any]:
        return {
            "codewords": self.codewords,
            "quantizer": self.quantizer,
            "residual": self.residual,
            "unigram_mix": self.unigram_mix,
        }

    def extra_repr(self) -> str:
        """What print(sampler) says in the brackets."""
        return f"{self.num_items}, codewords={self.codewords}, quantizer={self.quantizer}, residual={self.residual}"

    def _fit(self, given: Given) -> Tables:
        given.need_items()
        if self.unigram_mix:
            given.need_frequencies()
        tables = self._fit_tables(given)
        if self.unigram_mix:
            log_weights = torch.log(given.seen())
            tables |= {"unigram": cumulate(log_weights), "log_unigram": log_shares(log_weights).float()}
        return Tables(tables)

    def _fit_tables(self, given: Given) -> dict[str, Tensor]:
        items, bias = given.need_items(), given.bias
        if self.residual == "uniform" and bias is not None:
            return self._fit_biased(given, bias)
        books = self._fit_codebooks(given)
        tables = invert(books.codes, books.first, books.second)
        log_weight = None if bias is None else bias.cpu()
        if self.residual == "weighted" and given.queries is not None:
            log_weight = calibrate(tables, items, log_weight, given.queries)
        if self.residual in ("exact", "oracle"):
            tables["items"] = items.clone()
        return tables | weigh(tables, log_weight)

    def _fit_biased(self, given: Given, bias: Tensor) -> dict[str, Tensor]:
        """Without weights a bias is one more coordinate of the classes, in which every query is one."""
        items, queries = given.need_items(), given.queries
        wide = torch.cat([items, bias.float()[:, None].to(items.device)], 1)
        asked = None if queries is None else functional.pad(queries.float(), (0, 1), value=1.0)
        books = self._fit_codebooks(given._replace(items=wide, queries=asked))
        tables = invert(books.codes, books.first[:, :-1].copy(), books.second[:, :-1].copy())
        tables |= {
            "first_bias": torch.from_numpy(books.first[:, -1].copy()),
            "second_bias": torch.from_numpy(books.second[:, -1].copy()),
        }
        return tables | weigh(tables, None)

    def _fit_codebooks(self, given: Given) -> Codebooks:
        items, start, weights = given.need_items(), None, None
        if given.frequencies is not None:
            shares = (given.seen() / given.seen().max()).cpu().numpy()
            weights = np.maximum(shares**self.frequency_power, LIGHTEST)
        if self.tables is not None:
            books = [_whole(self.tables, name) for name in ("first", "second")]
            if books[0].shape[1] == items.shape[1]:
                start = (books[0].cpu().numpy(), books[1].cpu().numpy())
        return fit_codebooks(
            items.cpu().numpy(),
            self.codewords,
            self.quantizer,
            weights=weights,
            metric=None if given.queries is None else query_metric(given.queries.float().cpu().numpy()),
            start=start,
            seed=self.seed,
            threads=self.threads,
        )

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        law = self._law(queries)
        ids = law.draw(m, generator)
        if self.unigram_mix:
            shares = torch.rand((2, *ids.shape), generator=generator, device=ids.device, dtype=torch.float64)
            ids = torch.where(shares[0] < self.unigram_mix, find(law.tables["unigram"], shares[1]), ids)
        return ids, self._mix(law, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._mix(self._law(queries), ids)

    def _law(self, queries: Tensor) -> CodewordLaw:
        kind = {"exact": BucketSoftmax, "oracle": ThreeSteps}.get(self.residual, CodewordLaw)
        return kind(self._ready(), queries.float())

    def _mix(self, law: CodewordLaw, ids: Tensor) -> Tensor:
        log_q = law.log_q(ids)
        if not self.unigram_mix:
            return log_q
        log_unigram = law.tables["log_unigram"][ids]
        return torch.logaddexp(log_q + math.log1p(-self.unigram_mix), log_unigram + math.log(self.unigram_mix))

    def _check_queries(self, queries: Tensor) -> Tensor:
        rows = super()._check_queries(queries)
        check_dim(rows, self._ready()["first"].shape[1])
        return rows


def _whole(tables: Tables, name: str) -> Tensor:
    """A codebook with the coordinate of its bias, if it has one."""
    bias = f"{name}_bias"
    return torch.cat([tables[name], tables[bias][:, None]], 1) if bias in tables else tables[name]
