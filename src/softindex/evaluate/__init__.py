"""How far each method is from the exact softmax on your data, and what it costs: audits and calibrations."""

from softindex.evaluate.audit import TEMPERATURES, run_audit
from softindex.evaluate.calibrating import measure_calibration
from softindex.evaluate.results import LEGEND, Audit, Measured, Row

__all__ = ["LEGEND", "TEMPERATURES", "Audit", "Measured", "Row", "measure_calibration", "run_audit"]
