"""Peers side by side, one command (`make bench`), which writes the tables that docs/benchmarks.md shows."""
