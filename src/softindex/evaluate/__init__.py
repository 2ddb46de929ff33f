"""How wrong is it on my data, and what does it cost?  Audits, data sets and benchmarks."""
