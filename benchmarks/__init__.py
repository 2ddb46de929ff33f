"""Measurements beside other tools; `make bench` runs them and writes the tables of docs/benchmarks.md."""
