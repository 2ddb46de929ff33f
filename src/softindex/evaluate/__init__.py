"""How wrong is it on my data, and what does it cost?  Audits, data sets and benchmarks."""

from softindex.evaluate.audit import TEMPERATURES, Audit, Measured, Row, run_audit

__all__ = ["TEMPERATURES", "Audit", "Measured", "Row", "run_audit"]
