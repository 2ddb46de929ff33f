"""MIDXSampler: fits a multi-index to the classes, and draws from its law."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from softindex.errors import InputError, MethodError
from softindex.train.calibration import calibrate
from softindex.train.codebooks import QUANTIZERS, Codebooks, fit_codebooks, query_metric
from softindex.train.contract import Sampler, Tables, check_dim
from softindex.train.drawing import cumulate, find, log_shares
from softindex.train.multi_index import BucketSoftmax, CodewordLaw, ThreeSteps, invert, weigh
from softindex.vectors import check_count, check_seed, check_threads

__all__ = ["RESIDUALS", "MIDXSampler"]

RESIDUALS = ("uniform", "weighted", "exact", "oracle")


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
        if not 0 <= unigram_mix < 1:
            raise InputError(f"unigram_mix is {unigram_mix!r}; expected a part from 0 to below 1.")
        if not 0 <= frequency_power <= 2:
            raise InputError(f"frequency_power is {frequency_power!r}; expected a number from 0 to 2.")
        self.quantizer, self.residual = quantizer, residual
        self.unigram_mix, self.frequency_power = float(unigram_mix), float(frequency_power)
        self.seed, self.threads = check_seed(seed), check_threads(threads)

    def extra_repr(self) -> str:
        """What print(sampler) says in the brackets."""
        return f"{self.num_items}, codewords={self.codewords}, quantizer={self.quantizer}, residual={self.residual}"

    def _fit(
        self, items: Tensor | None, frequencies: Tensor | None, queries: Tensor | None, bias: Tensor | None
    ) -> Tables:
        if items is None:
            raise InputError("the sampler needs the vectors of the classes; give refresh(items).")
        if self.unigram_mix and frequencies is None:
            raise InputError("unigram_mix draws by frequency; give refresh(..., frequencies=...) as well.")
        if self.residual == "uniform" and bias is not None:
            return self._fit_biased(items, frequencies, queries, bias)
        books = self._fit_codebooks(items, frequencies, queries)
        tables = invert(books.codes, books.first, books.second)
        log_weight = None if bias is None else bias.cpu()
        if self.residual == "weighted" and queries is not None:
            log_weight = calibrate(tables, items, log_weight, queries)
        tables |= weigh(tables, log_weight)
        if self.residual in ("exact", "oracle"):
            tables["items"] = items.clone()
        return self._with_unigram(tables, frequencies)

    def _fit_biased(self, items: Tensor, frequencies: Tensor | None, queries: Tensor | None, bias: Tensor) -> Tables:
        """Without weights a bias is one more coordinate of the classes, in which every query is one."""
        wide = torch.cat([items, bias.float()[:, None].to(items.device)], 1)
        asked = None if queries is None else functional.pad(queries.float(), (0, 1), value=1.0)
        books = self._fit_codebooks(wide, frequencies, asked)
        tables = invert(books.codes, books.first[:, :-1].copy(), books.second[:, :-1].copy())
        tables |= {
            "first_bias": torch.from_numpy(books.first[:, -1].copy()),
            "second_bias": torch.from_numpy(books.second[:, -1].copy()),
        }
        return self._with_unigram(tables | weigh(tables, None), frequencies)

    def _with_unigram(self, tables: dict[str, Tensor], frequencies: Tensor | None) -> Tables:
        if self.unigram_mix and frequencies is not None:
            log_weights = torch.log(frequencies)
            tables |= {"unigram": cumulate(log_weights), "log_unigram": log_shares(log_weights).float()}
        return Tables(tables)

    def _fit_codebooks(self, items: Tensor, frequencies: Tensor | None, queries: Tensor | None) -> Codebooks:
        start = None
        if self.tables is not None:
            books = [_whole(self.tables, name) for name in ("first", "second")]
            if books[0].shape[1] == items.shape[1]:
                start = (books[0].cpu().numpy(), books[1].cpu().numpy())
        return fit_codebooks(
            items.cpu().numpy(),
            self.codewords,
            self.quantizer,
            weights=None if frequencies is None else frequencies.cpu().numpy() ** self.frequency_power,
            metric=None if queries is None else query_metric(queries.float().cpu().numpy()),
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

    def _check_kept(self, kept: Mapping[str, Tensor]) -> None:
        super()._check_kept(kept)
        needed = {"first", "bucket", "log_mass"}
        needed |= {"items"} if self.residual in ("exact", "oracle") else set()
        needed |= {"unigram"} if self.unigram_mix else set()
        if not needed <= kept.keys() or len(kept["first"]) != self.codewords:
            raise InputError(
                "the saved sampler has other codewords, residual or unigram_mix; make this one with the same arguments."
            )


def _whole(tables: Tables, name: str) -> Tensor:
    """A codebook with the coordinate of its bias, if it has one."""
    bias = f"{name}_bias"
    return torch.cat([tables[name], tables[bias][:, None]], 1) if bias in tables else tables[name]
