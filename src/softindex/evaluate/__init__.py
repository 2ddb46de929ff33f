"""Audits: how far each method is from the exact softmax on your data, and what it costs."""

from softindex.evaluate.audit import TEMPERATURES, run_audit
from softindex.evaluate.results import LEGEND, Audit, Measured, Row

__all__ = ["LEGEND", "TEMPERATURES", "Audit", "Measured", "Row", "run_audit"]
