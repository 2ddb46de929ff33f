"""MIDXSampler: draws classes from an inverted multi-index fitted to their vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from softindex.arguments import check_count, check_seed, check_threads
from softindex.errors import InputError
from softindex.records import Doubles
from softindex.train.checks import check_choice, check_dim, check_number
from softindex.train.class_weights import fit_class_weights
from softindex.train.codebooks import (
    QUANTIZERS,
    WARM_ITERATIONS,
    Codebooks,
    Metric,
    Quantizer,
    fit_codebooks,
    query_metric,
)
from softindex.train.codeword_law import ClusterSoftmaxLaw, CodewordLaw, SoftmaxLaw, cluster_tables, weight_tables
from softindex.train.contract import RefreshInput, Sampler, Tables
from softindex.train.drawing import BELOW_ONE, cumulate, find, log_normalise, spread_uniforms

__all__ = ["DRAWINGS", "RESIDUALS", "Drawing", "MIDXSampler", "Residual"]

Residual = Literal["uniform", "weighted", "exact", "oracle"]
RESIDUALS: tuple[str, ...] = get_args(Residual)
Drawing = Literal["independent", "systematic"]
DRAWINGS: tuple[str, ...] = get_args(Drawing)
CODEWORDS = {2: 64, 3: 16, 4: 8}
"""Default size of each codebook, by the number of codebooks."""
MOST_CLUSTERS = 1 << 16
"""Limit for three and four codebooks; two codebooks have none."""
LIGHTEST = 1e-12
"""Smallest weight of a class in k-means, relative to the heaviest: every class must be able to get a codeword."""


class MIDXSampler(Sampler):
    """Draw classes with probabilities close to the softmax, at a cost that does not depend on their number.

    Two codebooks approximate each class vector by a pair of codewords; the classes with the same pair are a cluster.
    A query scores the codewords only, draws a pair, then a class of that cluster.  Two of the `residual` options score
    classes as well.

    Args:
        num_items: Number of classes.
        codewords: Size of each codebook; None uses 64 for two codebooks, 16 for three and 8 for four, each of which
            gives 4,096 clusters.
        codebooks: 2, 3 or 4, which give codewords ** codebooks clusters; with 3 or 4, at most 65,536.
        quantizer: "rq": each codebook quantises the residuals of those before it.  "pq": each codebook quantises its
            own part of the coordinates, half of them where there are two.
        residual: How to treat the difference between a class and its codewords.

            - "uniform": ignore it, as published; the classes of a cluster are drawn equally often.
            - "weighted": each class has a weight.  This makes a bias exact.  If `refresh` gets queries, the weights
              also make each class about as frequent over those queries as under the softmax.
            - "exact": the softmax of the vectors inside a cluster; scores every class of a drawn cluster.
            - "oracle": no approximation: the softmax itself; scores every class.
        drawing: How the draws of a query depend on each other; each by itself follows q in both cases.

            - "independent": not at all.
            - "systematic": one random number places n points at equal distances on the cumulative distribution.  A
              class of probability q is drawn n q times, rounded up or down, and so is every cluster.  Sums over the
              draws have the same mean and less variance.  With `unigram_mix` the two kinds of draws are rounded
              separately.  Draws that all queries share are independent.
        unigram_mix: Share of draws made by frequency instead, which bounds the weight of a single draw.
        frequency_power: If `refresh` gets frequencies, k-means weights classes by frequency to this power.
        warm_iterations: Iterations of k-means in a refresh that starts from the last codebooks; 1 is enough where
            refreshes are frequent.
        seed: Seed of k-means.
        threads: Threads used by `refresh`; None uses all cores.

    If `refresh` gets queries, k-means minimises the error of the products with such queries instead of the distance.
    """

    def __init__(
        self,
        num_items: int,
        *,
        codewords: int | None = None,
        codebooks: int = 2,
        quantizer: Quantizer = "rq",
        residual: Residual = "uniform",
        drawing: Drawing = "independent",
        unigram_mix: float = 0.0,
        frequency_power: float = 0.5,
        warm_iterations: int = WARM_ITERATIONS,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(num_items)
        self.codebooks = _check_codebooks(codebooks)
        self.codewords = _check_codewords(codewords, self.codebooks)
        check_choice(quantizer, "quantizer", QUANTIZERS)
        check_choice(residual, "residual", RESIDUALS)
        check_choice(drawing, "drawing", DRAWINGS)
        self.quantizer, self.residual, self.drawing = quantizer, residual, drawing
        self.independent = drawing == "independent"
        self.unigram_mix = check_number(unigram_mix, "unigram_mix", 0, 1, below=True)
        self.frequency_power = check_number(frequency_power, "frequency_power", 0, 2)
        self.warm_iterations = check_count(warm_iterations, "warm_iterations")
        self.seed, self.threads = check_seed(seed), check_threads(threads)

    assumed: ClassVar[Mapping[str, Any]] = {"codebooks": 2}

    def _options(self) -> dict[str, Any]:
        return {
            "codebooks": self.codebooks,
            "codewords": self.codewords,
            "quantizer": self.quantizer,
            "residual": self.residual,
            "unigram_mix": self.unigram_mix,
        }

    def extra_repr(self) -> str:
        """The text between the brackets of repr(sampler)."""
        books = "" if self.codebooks == 2 else f"codebooks={self.codebooks}, "
        drawing = "" if self.independent else f", drawing={self.drawing}"
        return (
            f"{self.num_items}, codewords={self.codewords}, {books}quantizer={self.quantizer}, "
            f"residual={self.residual}{drawing}"
        )

    def _fit(self, inputs: RefreshInput) -> Tables:
        inputs.require_items()
        if self.unigram_mix:
            inputs.require_frequencies()
        tables = self._fit_tables(inputs)
        if self.unigram_mix:
            log_weights = torch.log(inputs.positive_frequencies())
            tables |= {"unigram": cumulate(log_weights), "log_unigram": log_normalise(log_weights).float()}
        return Tables(tables)

    def _fit_tables(self, inputs: RefreshInput) -> dict[str, Tensor]:
        items, bias = inputs.require_items(), inputs.bias
        if self.residual == "uniform" and bias is not None:
            return self._fit_biased(inputs, bias)
        tables = _tables_of(self._fit_codebooks(inputs))
        log_weight = None if bias is None else bias.cpu()
        if self.residual == "weighted" and inputs.queries is not None:
            log_weight = fit_class_weights(tables, items, log_weight, inputs.queries)
        if self.residual in ("exact", "oracle"):
            tables["items"] = items.clone()
        return tables | weight_tables(tables, log_weight)

    def _fit_biased(self, inputs: RefreshInput, bias: Tensor) -> dict[str, Tensor]:
        """Without weights the bias becomes one more coordinate of the classes, which is 1 in every query."""
        items, queries = inputs.require_items(), inputs.queries
        wide = torch.cat([items, bias.float()[:, None].to(items.device)], 1)
        wide_queries = None if queries is None else functional.pad(queries.float(), (0, 1), value=1.0)
        tables = _tables_of(self._fit_codebooks(inputs._replace(items=wide, queries=wide_queries)))
        for name in ("first", "second"):
            book = tables[name]
            tables |= {name: book[:, :-1].clone(), f"{name}_bias": book[:, -1].clone()}
        return tables | weight_tables(tables, None)

    def _fit_codebooks(self, inputs: RefreshInput) -> Codebooks:
        items = inputs.require_items()
        start = None if self.tables is None else _books_in(self.tables).cpu().numpy()
        if start is not None and start.shape[2] != items.shape[1]:
            start = None
        return fit_codebooks(
            items.cpu().numpy(),
            self.codewords,
            self.quantizer,
            codebooks=self.codebooks,
            weights=self._kmeans_weights(inputs),
            metric=self._metric(inputs.queries),
            start=start,
            iterations=None if start is None else self.warm_iterations,
            seed=self.seed,
            threads=self.threads,
        )

    def _metric(self, queries: Tensor | None) -> Metric | None:
        return None if queries is None else query_metric(queries.float().cpu().numpy(), self.codebooks)

    def _kmeans_weights(self, inputs: RefreshInput) -> Doubles | None:
        if inputs.frequencies is None:
            return None
        counts = inputs.positive_frequencies()
        shares = (counts / counts.max()).cpu().numpy()
        return np.maximum(shares**self.frequency_power, LIGHTEST)

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        law = self._law(queries)
        if not self.independent:
            ids = self._find(law, spread_uniforms(len(queries), n, generator, queries.device))
            return ids, self._mix(law, ids)
        ids = law.draw(n, generator)
        if self.unigram_mix:
            uniforms = torch.rand((2, *ids.shape), generator=generator, device=ids.device, dtype=torch.float64)
            ids = torch.where(uniforms[0] < self.unigram_mix, find(law.tables["unigram"], uniforms[1]), ids)
        return ids, self._mix(law, ids)

    def _find(self, law: CodewordLaw, uniforms: Tensor) -> Tensor:
        """The classes that numbers in [0, 1) select: those below `unigram_mix` by frequency."""
        if not self.unigram_mix:
            return law.find(uniforms)
        mixed = uniforms < self.unigram_mix
        rest = torch.where(mixed, uniforms, uniforms - self.unigram_mix)
        rest = (rest / torch.where(mixed, self.unigram_mix, 1 - self.unigram_mix)).clamp(max=BELOW_ONE)
        return torch.where(mixed, find(law.tables["unigram"], rest), law.find(rest))

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._mix(self._law(queries), ids)

    def _law(self, queries: Tensor) -> CodewordLaw:
        kind = {"exact": ClusterSoftmaxLaw, "oracle": SoftmaxLaw}.get(self.residual, CodewordLaw)
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


def _check_codebooks(codebooks: Any) -> int:
    count = check_count(codebooks, "codebooks")
    if count not in CODEWORDS:
        raise InputError(f"codebooks is {count}; expected 2, 3 or 4.")
    return count


def _check_codewords(codewords: Any, codebooks: int) -> int:
    size = CODEWORDS[codebooks] if codewords is None else check_count(codewords, "codewords")
    if codebooks > 2 and size**codebooks > MOST_CLUSTERS:
        most = int((MOST_CLUSTERS + 0.5) ** (1 / codebooks))
        raise InputError(
            f"codewords is {size}, which gives {size**codebooks} clusters with {codebooks} codebooks, and a query "
            f"reads them all; expected at most {most} codewords with {codebooks} codebooks."
        )
    return size


def _tables_of(books: Codebooks) -> dict[str, Tensor]:
    first, second, codes = books.merged()
    tables = cluster_tables(codes, first, second)
    # Two codebooks are in the tables already.  Of more, the tables have sums only, but a refresh needs the codebooks.
    return tables if len(books.books) == 2 else tables | {"books": torch.from_numpy(books.books)}


def _books_in(tables: Tables) -> Tensor:
    """The fitted codebooks (codebooks, k, d), including the coordinate of a bias, if they have one."""
    if "books" in tables:
        return tables["books"]
    books = torch.stack([tables["first"], tables["second"]])
    if "first_bias" not in tables:
        return books
    return torch.cat([books, torch.stack([tables["first_bias"], tables["second_bias"]])[:, :, None]], 2)
