"""Measure how far stated errors and estimates of log Z are from the truth, for `Index.calibrate`."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.arguments import check_queries, check_temperatures, check_threads
from softindex.blocks import blocks
from softindex.calibration import SCALE, Calibration, Setting, check_calibrating, refine
from softindex.evaluate.distances import between
from softindex.evaluate.truth import find_truth
from softindex.index import Index
from softindex.laws import LAWS, check_probes, find_law
from softindex.progress import reporting

__all__ = ["measure_calibration"]

BLOCK_QUERIES = 256
"""Queries whose masses of all clusters are in memory at a time."""


def measure_calibration(
    index: Index,
    queries: Any,
    *,
    confidence: Any,
    temperatures: Any,
    method: Any,
    probes: Any,
    tolerance: Any,
    threads: int | None,
    progress: bool,
) -> Calibration:
    """The calibration of one method on these queries; see `Index.calibrate`, which has the defaults."""
    batch = check_queries(queries, index.dim)[0]
    workers, grid = check_threads(threads), refine(check_temperatures(temperatures))
    find_law(method, index.parameters["dispersion"], index.parameters["tree"])
    level = check_calibrating(method, confidence, len(batch))
    setting = Setting.of(method, *check_probes(probes, tolerance, method, index.clusters))
    options = {"method": method, "probes": probes, "tolerance": tolerance, "threads": workers}
    errors, log_partitions = np.empty((2, len(grid), len(batch)))
    parts = list(blocks(len(batch), BLOCK_QUERIES))
    with reporting(progress) as report:
        for done, rows in enumerate(parts, 1):
            truth = find_truth(index.items, batch[rows], grid, threads=workers)
            for place, temperature in enumerate(grid):
                masses, stated, _ = index.cluster_log_masses(batch[rows], temperature=temperature, **options)
                # A method that states no error states 0 here: the calibration is then all that is stated.
                known = np.nan_to_num(stated)
                distance = between(masses, truth.log_masses[place]).total_variation
                errors[place, rows] = (distance - known) / (known + SCALE)
                away = np.logaddexp.reduce(masses, axis=1) - truth.log_partition[place]
                log_partitions[place, rows] = np.abs(away) / (known + SCALE)
            if report is not None:
                report("calibrating", done, len(parts))
    if LAWS[method].kind == "tree":
        log_partitions[:] = 0.0  # its masses are probabilities, not an estimate of log Z
    return Calibration(np.array(grid), errors, log_partitions, setting, level)
