"""Probing in plain float64 NumPy: the definition that tests compare the native probing with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.kernels.reference import hash_bytes, log_sum_exp, pick, scan, uniforms, weigh
from softindex.kernels.reference_tails import (
    TAIL_STEP,
    TailSample,
    dispersion_term,
    logit_variances,
    raised_tails,
    tail_moments,
    usual_tails,
)
from softindex.records import Doubles, Moments, Outliers

TAIL_KEY = 0x7461696C73616D70
TAIL_SAMPLES = 8
SHORTEST_STRETCH = 64
MOST_PRECISE = 25.0
NEAREST_CLUSTERS, COPY_LENGTHS = 8, 8
NEARLY, LENGTH_STEP, COPIED = 1.15, 1.25, 0.999
RELEVANT, ALLOWED_CHANCE, SEARCHED_PART, NIL = 1.0, 2 / 3, 0.125, 1e-3
EXPECTED_PART, TAME = 0.25, 0.125
LARGE_SHARE = 1 / 32
FIRST_PROBES, SURPRISING = 4, 3.0
BUDGET_NUMBERS, BUDGET_PART = 1 << 20, 20
MEAN_DEVIATION = 0.7979
LARGEST_VARIANCE, LARGEST_MISFIT = 30.0, 25.0
NO_HOPE = 0.03
SET_ASIDE = 16


class Probing:
    """One query's probing: the clusters that are known exactly, and the estimates of the others (the tail).

    With probes = 0 the law is the published one, `reference.estimated_masses`. Excluded items stay in the masses, and
    adaptive probing judges everything by the items that can be drawn; for a slate, without the likeliest ones.
    """

    def __init__(
        self,
        vectors: NDArray[Any],
        offsets: NDArray[Any],
        moments: Moments,
        bias: NDArray[Any] | None,
        query: NDArray[Any],
        temperature: float,
        *,
        offset: NDArray[Any],
        dispersion: bool,
        tolerance: float,
        outliers: Outliers | None,
        tails: NDArray[Any] | None,
        excluded: NDArray[Any] | None = None,
        slate: bool = False,
    ) -> None:
        # An empty list of outliers is the same as none.
        self.outliers = None if outliers is None or len(outliers.positions) == 0 else outliers
        self.norm_min, self.norm_max = moments.norm_min, moments.norm_max
        # Without a sketch nothing was measured, and clusters are scanned where others are searched.
        self.searchable = tails is not None
        self.curve = usual_tails() if tails is None else np.minimum.accumulate(tails)
        self.tails = self.curve if tails is None else raised_tails(self.curve)
        self.unlisted: float | None = None
        self.budget = float("inf")
        self.vectors, self.offsets, self.bias, self.query = vectors, offsets, bias, query
        self.temperature, self.tolerance = temperature, tolerance
        self.sizes, self.radii = np.diff(offsets), moments.radii
        self.log_counts = np.log(np.maximum(self.sizes, 1))
        self.log_weight = log_sum_exp(offset) - np.log(len(vectors))
        dots = scan(moments.means, query)
        self.dots, self.half_squares = dots, np.square(moments.means.astype(np.float64)).sum(axis=1) / 2
        self.norm = float(np.linalg.norm(query.astype(np.float64)))
        self.variances = logit_variances(moments, query, temperature) if dispersion else None
        self.estimates = dots / temperature + offset
        if self.variances is not None:
            self.estimates = self.estimates + dispersion_term(self.variances, self.log_counts)
        if moments.reach is not None:
            # The score of the item that reaches farthest along the mean is known approximately.
            longest = dots * moments.reach.astype(np.float64) / temperature + self.log_weight
            self.estimates = np.where(self.sizes > 1, np.maximum(self.estimates, longest), self.estimates)
        self.means = dots / temperature + self.log_weight
        self.known = np.full(len(self.sizes), -np.inf)
        # Of the clusters scanned: the logits of the items that can be drawn.  The likeliest are set aside for a slate.
        self.scanned: dict[int, Doubles] = {}
        self.aside = SET_ASIDE if slate else 0
        self.excluded = np.zeros(len(vectors), bool) if excluded is None else excluded
        # The sample of the tail depends on the direction of the query only: not on the seed, nor on its length.
        peak = float(np.abs(query).max())
        self.stream = hash_bytes(np.rint(query * (127.0 / peak if peak > 0 else 0.0)).astype(np.int8).tobytes())
        self.suspected, self.searched = np.zeros(len(self.sizes), bool), np.zeros(len(self.sizes), bool)
        self.samples: list[TailSample] = []
        self.drawn = self.scored = self.probed = 0
        self.rho = 1.0

    def run(self, probes: int) -> tuple[Doubles, float, int]:
        """Return the law's log masses (k,), the stated error and the number of items scored. probes < 0: adaptive."""
        if probes < 0:
            self.budget = max(BUDGET_NUMBERS // len(self.query), len(self.vectors) // BUDGET_PART)
            self.scan_nearest_clusters()
            self.scan_large_clusters()
            self.scan_clusters_of_outliers()
            self.unlisted = None if self.outliers is None else float(self.outliers.farthest[0])
        wanted = max(probes, 0)
        while True:
            self.scan_best_clusters(wanted)
            if not self.tail_is_empty():
                self.sample_tail()
            if self.tail_is_empty():
                return self.finish(0.0)
            if probes < 0 and self.search_extremes():
                continue
            # More probes lower the error of the masses; the chance of extremes is as small as the search made it.
            error = self.tail_error()
            if probes >= 0 or error <= self.tolerance or self.scored >= self.budget:
                return self.finish(self.stated(error))
            if self.scan_surprises():
                continue
            if self.hopeless(error, int(self.budget) - self.scored):
                return self.finish(self.stated(error))
            wanted = max(FIRST_PROBES, 2 * self.probed)

    def scan_surprises(self) -> bool:
        """Scan sampled clusters far above rho: they do not represent the others. Return whether there were any."""
        high = [sample.cluster for sample in self.samples if sample.ratio > SURPRISING * self.rho]
        clusters = [cluster for cluster in dict.fromkeys(high) if np.isfinite(self.estimates[cluster])]
        self.probe_clusters(np.array(clusters, np.int64))
        return bool(clusters)

    def finish(self, error: float) -> tuple[Doubles, float, int]:
        """Give known clusters their exact mass and the others their estimate times rho."""
        return np.where(np.isfinite(self.estimates), self.estimates + np.log(self.rho), self.known), error, self.scored

    def tail_is_empty(self) -> bool:
        """Whether every cluster is known."""
        return not np.isfinite(self.estimates).any()

    def tail_weights(self) -> Doubles:
        """Masses (k,) of the unknown clusters relative to the largest."""
        return np.asarray(np.exp(self.estimates - self.estimates.max()))

    def tail_share(self) -> float:
        """The fraction of the total mass in unknown clusters."""
        known, tail = self.log_drawable(), np.log(self.rho) + log_sum_exp(self.estimates)
        return float(np.exp(tail - np.logaddexp(known, tail)))

    def scan_stretch(self, begin: int, count: int) -> tuple[float, float]:
        """The log mass of `count` items starting at `begin`, and the variance of their logits without biases."""
        self.scored += count
        dots = scan(self.vectors[begin : begin + count], self.query)
        bias = None if self.bias is None else self.bias[begin : begin + count]
        return weigh(dots, self.temperature, bias)[1], float((dots / self.temperature).var())

    def remember(self, cluster: int, log_sum: float) -> None:
        """Record the exact log mass of a cluster."""
        rows = slice(int(self.offsets[cluster]), int(self.offsets[cluster + 1]))
        self.known[cluster], self.estimates[cluster] = log_sum, -np.inf
        self.scanned[cluster] = self.logits(rows)

    def log_drawable(self) -> float:
        """The log mass of what can be drawn of the known clusters, once a slate has taken the likeliest items."""
        left = np.sort(np.concatenate([[-np.inf], *self.scanned.values()]))
        return log_sum_exp(left[: max(1, len(left) - self.aside)])

    def probe_clusters(self, clusters: NDArray[Any]) -> None:
        """Scan these clusters completely, largest estimate first, until the budget is spent."""
        for cluster in sorted(clusters, key=lambda cluster: (-self.estimates[cluster], cluster)):
            if self.scored >= self.budget:
                break
            self.remember(cluster, self.scan_stretch(int(self.offsets[cluster]), int(self.sizes[cluster]))[0])
            self.probed += 1

    def probe_one(self, cluster: int) -> None:
        """Scan this cluster, whatever the budget says."""
        self.remember(cluster, self.scan_stretch(int(self.offsets[cluster]), int(self.sizes[cluster]))[0])

    def log_tail(self) -> float:
        """The log mass of all unknown clusters by their estimates, without rho."""
        return log_sum_exp(self.estimates)

    def everything(self, log_tail: float) -> float:
        """The log mass of all clusters: what is known, and this estimate of the others, times rho."""
        return float(np.logaddexp(self.log_drawable(), np.log(self.rho) + log_tail))

    def scan_nearest_clusters(self) -> None:
        """Scan the clusters where an item in the query's direction would lie, for each length it may have."""
        length, shortest = float(self.norm_max.max()), float(self.norm_min[self.sizes > 0].min())
        # The tail is not summed again after every scan, here and in a search: what is scanned counts twice for a while.
        log_tail = self.log_tail()
        for step in range(COPY_LENGTHS):
            copy = self.norm * length / self.temperature + self.log_weight
            if self.norm == 0 or (step > 0 and length < shortest):
                break
            if not copy - self.everything(log_tail) > np.log(self.tolerance / 4):
                break
            for place, cluster in enumerate(self.nearest_clusters(length)):
                if place > 0:
                    self.suspected[cluster] = True
                elif np.isfinite(self.estimates[cluster]):
                    self.probe_one(cluster)
                    self.probed += 1
                    rows = slice(self.offsets[cluster], self.offsets[cluster + 1])
                    best = scan(self.vectors[rows][~self.excluded[rows]], self.query).max(initial=-np.inf)
                    if best >= COPIED * self.norm * length:
                        break
            length /= LENGTH_STEP

    def nearest_clusters(self, length: float) -> list[int]:
        """The clusters with such items whose mean is nearest to that place, or nearly so; ties go to the lower one."""
        distances = length * length - 2 * (length / self.norm * self.dots - self.half_squares)
        holds = (self.sizes > 0) & (self.norm_max * LENGTH_STEP >= length) & (self.norm_min <= length)
        order = [int(c) for c in np.argsort(distances, kind="stable") if holds[c]]
        return [c for c in order[:NEAREST_CLUSTERS] if distances[c] <= NEARLY * distances[order[0]]]

    def relevant_mass(self, log_tail: float) -> float:
        """The log mass from which on a single item matters."""
        return self.everything(log_tail) + float(np.log(RELEVANT * self.tolerance))

    def deviations(self) -> Doubles:
        """The standard deviation (k,) of the logits of each cluster."""
        variances = self.variances
        if variances is None:
            variances = np.full(len(self.sizes), np.mean([sample.variance for sample in self.samples]))
        return np.asarray(np.sqrt(np.maximum(variances, 1e-300)))

    def end(self) -> float:
        """Deviations beyond which there is no item, most probably."""
        beyond = np.flatnonzero(self.tails < NIL / len(self.vectors))
        return TAIL_STEP * float(beyond[0] if len(beyond) else len(self.tails) - 1)

    def unseen(self) -> float:
        """The share of all mass by which the tail falls short of what its clusters are expected to hold."""
        log_tail = self.log_tail()
        least, deviations = self.relevant_mass(log_tail), self.deviations()
        moments = tail_moments(self.curve, deviations, np.minimum((least - self.means) / deviations, self.end()))
        shares = self.sizes * moments * np.exp(self.means - self.everything(log_tail))
        counts = np.isfinite(self.estimates) & (self.sizes >= 2) & (np.square(deviations) >= TAME)
        return max(0.0, float(shares[counts].sum()) - self.tail_share())

    def chances(self, least: float) -> Doubles:
        """The chance (k,) that a cluster that was neither scanned nor searched holds an item of this log mass."""
        above = least - self.means
        z = np.where(above > 0, above / self.deviations(), 0.0)
        place = np.minimum(z / TAIL_STEP, len(self.tails) - 1.0)
        share = np.where(place < len(self.tails) - 1, np.interp(place, np.arange(len(self.tails)), self.tails), 0.0)
        # No item lies farther from the mean; adaptive probing has already checked those beyond the limit of the list.
        radii = self.radii if self.unlisted is None else np.minimum(self.radii, self.unlisted)
        share = np.where((z < self.end()) & (above <= self.norm * radii / self.temperature), share, 0.0)
        chances = np.where(above > 0, np.minimum(1.0, self.sizes * share), 1.0)
        return np.where(np.isfinite(self.estimates) & ~self.searched & (self.sizes >= 2), chances, 0.0)

    def search_extremes(self) -> bool:
        """Scan the clusters that hold a single item with a relevant share; return whether there were any.

        The kernels find these items by the sketch; clusters that cannot hold one, most probably, are not searched.
        """
        log_tail, allowed = self.log_tail(), ALLOWED_CHANCE * self.tolerance
        least = self.relevant_mass(log_tail)
        chances = self.chances(least)
        suspects = self.suspected & np.isfinite(self.estimates) & ~self.searched & (self.sizes >= 2)
        if chances.sum() <= allowed and not suspects.any():
            return False
        ranks = chances + suspects
        order = [int(c) for c in np.argsort(-ranks, kind="stable") if ranks[c] > 0]
        left = ranks[order[-1]]
        while order and left <= allowed:
            order.pop()
            left += ranks[order[-1]] if order else 0.0
        first, found = least, False
        for cluster in order:
            if not suspects[cluster] and least > first and self.chances(least)[cluster] < allowed / len(self.sizes):
                continue
            if not self.searchable and self.scored >= self.budget:
                break
            self.searched[cluster] = True
            if self.searchable:
                if not self.holds(cluster, least + float(np.log(SEARCHED_PART))):
                    continue
                self.budget += int(self.sizes[cluster])
            self.probe_one(cluster)
            least, found = self.relevant_mass(log_tail), True
        return found

    def holds(self, cluster: int, least: float) -> bool:
        """Whether an item of the cluster has at least this log mass."""
        rows = slice(int(self.offsets[cluster]), int(self.offsets[cluster + 1]))
        return bool(self.logits(rows).max() >= least)

    def logits(self, rows: slice) -> Doubles:
        """Those of the items at these positions; -inf for excluded ones."""
        logits = scan(self.vectors[rows], self.query) / self.temperature
        return np.where(self.excluded[rows], -np.inf, logits if self.bias is None else logits + self.bias[rows])

    def scan_clusters_of_outliers(self) -> None:
        """Scan clusters with a listed outlier whose own share of the mass would be significant."""
        if self.outliers is None or self.tail_is_empty():
            return
        everything = np.logaddexp(self.log_drawable(), log_sum_exp(self.estimates))
        least = everything + np.log(self.tolerance / 8) - self.log_weight
        longest = float(np.linalg.norm(self.query.astype(np.float64))) * float(self.norm_max.max())
        if longest / self.temperature < least and self.bias is None:
            return
        positions = self.outliers.positions
        logits = scan(self.outliers.vectors, self.query) / self.temperature
        if self.bias is not None:
            logits = logits + self.bias[positions] - self.log_weight
        self.scored += len(positions)
        positions = positions[(logits >= least) & ~self.excluded[positions]]
        clusters = np.unique(np.searchsorted(self.offsets, positions, side="right") - 1)
        # Scans so far must not use up the budget of these clusters.
        most = self.scored + self.budget
        for cluster in clusters[np.isfinite(self.estimates[clusters])]:
            if self.scored < most:
                self.probe_one(cluster)
                self.probed += 1

    def scan_large_clusters(self) -> None:
        """Scan clusters with a large share of the mass; the threshold is lower where logits have a high variance."""
        if not self.tail_is_empty():
            everything = np.logaddexp(self.log_drawable(), log_sum_exp(self.estimates))
            share = np.exp(self.estimates - everything)
            weight = 1.0 if self.variances is None else np.maximum(self.variances, 1.0)
            self.probe_clusters(np.flatnonzero(share * weight > LARGE_SHARE))

    def scan_best_clusters(self, wanted: int) -> None:
        """Scan clusters in order of estimates until `wanted` clusters are probed; ties go to the lower cluster."""
        order = np.argsort(-self.estimates, kind="stable")[: max(wanted - self.probed, 0)]
        self.probe_clusters(np.sort(order[np.isfinite(self.estimates[order])]))

    def sample_tail(self) -> None:
        """Complete the sample of unknown clusters, drawn in proportion to their estimates; rho is their mean ratio."""
        self.samples = [sample for sample in self.samples if np.isfinite(self.estimates[sample.cluster])]
        weights = self.tail_weights()
        while len(self.samples) < TAIL_SAMPLES:
            first, second = uniforms(TAIL_KEY, self.stream, self.drawn)
            self.drawn += 1
            self.samples.append(self.sample_cluster(pick(weights, first), second))
        for sample in self.samples:
            if sample.log_sum > -np.inf:
                self.remember(sample.cluster, sample.log_sum)
        self.rho = max(float(np.mean([sample.ratio for sample in self.samples])), 1e-3)

    def sample_cluster(self, cluster: int, uniform: float) -> TailSample:
        """Scan a stretch of the cluster, long enough for a precise estimate of its mass."""
        size = int(self.sizes[cluster])
        variance = 1.0 if self.variances is None else min(self.variances[cluster], 6.0)
        share = self.tail_share()
        weight = share * (1 - share) / self.tolerance
        enough = min(2 * weight * weight, MOST_PRECISE) * np.expm1(variance)
        # With biases a few items may carry their cluster, and a stretch would usually miss them.
        count = min(size, max(SHORTEST_STRETCH, int(enough))) if self.bias is None else size
        log_sum, spread = self.scan_stretch(int(self.offsets[cluster]) + int(uniform * (size - count + 1)), count)
        log_ratio = log_sum + np.log(size / count) - self.estimates[cluster]
        excess = float(np.expm1(min(spread, LARGEST_VARIANCE)))
        return TailSample(
            cluster=cluster,
            ratio=float(np.exp(min(log_ratio, 50.0))),
            noise=excess / count * (1 - count / size),
            misfit=min(excess / size, LARGEST_MISFIT),
            variance=spread,
            log_sum=log_sum if count == size else -np.inf,
        )

    def stated(self, error: float) -> float:
        """The estimated total variation: what is unknown of the masses, and the chance that an item was not found."""
        chance = float(self.chances(self.relevant_mass(self.log_tail())).sum())
        return min(1.0, error + chance + EXPECTED_PART * self.unseen() + 1e-16)

    def tail_error(self) -> float:
        """The estimated total variation from the masses of the tail.

        Two properties of the tail are unknown: how much its clusters differ from their estimates times rho, and rho
        itself. Each is estimated from the sample and from the variance of the logits, and the larger estimate counts.
        """
        count = len(self.samples)
        relative = np.array([sample.ratio for sample in self.samples]) / self.rho - 1
        noise = float(np.mean([sample.noise for sample in self.samples]))
        misfit = np.array([sample.misfit for sample in self.samples])
        deviation = np.abs(relative).sum() / (count - 1)
        seen = np.sqrt(max(0.0, deviation**2 - MEAN_DEVIATION**2 * noise))
        spread = max(seen, np.minimum(MEAN_DEVIATION * np.sqrt(misfit), 2.0).mean())
        variance = max((relative**2).sum() / (count - 1), noise + misfit.mean())
        uncertainty = MEAN_DEVIATION * np.sqrt(variance / count)
        share = self.tail_share()
        # Where the tail is everything, an error of rho changes log Z but not the law.
        self.log_error = float(share * min(uncertainty, 1.0))
        return float(min(share, share * spread / 2 + share * (1 - share) * uncertainty))

    def hopeless(self, error: float, budget: int) -> bool:
        """Whether spending the rest of the budget would still leave the error above the tolerance."""
        weights, k = self.tail_weights(), len(self.sizes)
        affordable = min(k - 1, budget * k // len(self.vectors) + 1)
        best = np.sort(weights)[::-1][:affordable].sum()
        return bool(error * (1 - best / weights.sum()) > max(self.tolerance, NO_HOPE))
