"""What the library tests itself with, shipped so that a new law or a fork can be held to the same promises."""

from softindex.testing.contract import LawContract
from softindex.testing.statistics import chi_square_score, kl_divergence, total_variation
from softindex.testing.strategies import catalogues, queries, temperatures

__all__ = [
    "LawContract",
    "catalogues",
    "chi_square_score",
    "kl_divergence",
    "queries",
    "temperatures",
    "total_variation",
]
