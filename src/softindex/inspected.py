"""What an index can be asked about itself: an audit, and a calibration on the caller's queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, cast

from numpy.typing import ArrayLike

from softindex.calibration import CONFIDENCE
from softindex.laws import Method

if TYPE_CHECKING:
    from softindex.evaluate import Audit
    from softindex.index import Index

__all__ = ["Inspected"]


class Inspected:
    """The methods of `Index` that measure it.

    The only imports upwards are here: evaluating is a layer above the index, and loaded only when it is used.
    """

    __slots__ = ()

    def audit(
        self,
        queries: Any = None,
        *,
        count: int | None = None,
        temperatures: Any = (0.05, 0.1, 0.2),
        methods: Any = None,
        tolerance: float | None = None,
        slate: int | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: bool = False,
    ) -> Audit:
        """Measure how far every method is from the softmax on these items, and what it costs.

        The softmax itself is computed in float64 on all threads; latencies are those of single queries on one thread.

        Args:
            queries: Query vectors like your traffic, (b, d), not among the items.  None: items of the index, drawn by
                the seed, each of which may not be drawn for itself.
            count: How many of them; when None, 300 items or all the queries that you pass.
            temperatures: One, or several.
            methods: Names, each with a colon and a number of probes if you like, as in "sd-2ls:16" ("sd-2ls:0" is the
                published method); None: all that this index serves.
            tolerance: Total variation that the recommendation allows, 0.03 when None.
            slate: Also time slates of this many items, draws with a thousand excluded ids, and both; and state what the
                stated error does to importance weights.

        Returns:
            Rows, a recommendation, and `to_html(path)` and `to_json(path)`.
        """
        from softindex.evaluate import run_audit

        return run_audit(
            cast("Index", self),
            queries,
            count=count,
            temperatures=temperatures,
            methods=methods,
            tolerance=tolerance,
            slate=slate,
            seed=seed,
            threads=threads,
            progress=progress,
        )

    def calibrate(
        self,
        queries: ArrayLike,
        *,
        confidence: float = CONFIDENCE,
        temperatures: float | Iterable[float] = (0.02, 0.05, 0.1, 0.2),
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> Self:
        """Return this index with its stated error calibrated on your own queries; this one stays as it is.

        Split-conformal calibration, stored with the index: the exact softmax of these queries is computed, and from
        then on `P(total variation > draws.error) <= 1 - confidence` for queries exchangeable with these, whatever
        their distribution.  The probability is over these queries and the new one.  `log_partition(confidence=...)`
        returns calibrated intervals.  `draws.confidence` says whether a call was covered: these temperatures and
        those between them (where the larger correction of both neighbours is used, which is not proven), this
        method, probes, tolerance and version of softindex, and no restriction of the items.

        Args:
            queries: Query vectors like those to come, (m, d), not used for anything else.  It takes m >= 1 / (1 -
                confidence) - 1, 9 for 0.9; with some hundreds the coverage is within a few percent.
            confidence: Of `draws.error`, 0.9 unless you say otherwise.
            temperatures: One, or several: the range that you will use.
            method: As for `sample`, like `probes` and `tolerance`.

        Raises:
            InputError: When there are too few queries.
        """
        from softindex.evaluate import measure_calibration

        index = cast("Index", self)
        options = {"method": method, "probes": probes, "tolerance": tolerance}
        calibration = measure_calibration(
            index, queries, confidence=confidence, temperatures=temperatures, threads=threads, progress=progress,
            **options,
        )  # fmt: skip
        return cast("Self", index.with_calibration(calibration))
