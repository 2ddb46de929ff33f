"""The figures of "Size- and dispersion-corrected two-level softmax sampling" (Bendada and Salha-Galvan, 2026)."""

__all__ = ["PAPER_CLUSTERS", "PAPER_ITEMS", "PAPER_KL", "PAPER_LATENCY", "PAPER_NAMES"]

PAPER_NAMES = ("NumPy exact", "faiss top-1000", "2ls", "hierarchical", "s-2ls", "sd-2ls, full covariances")
"""Our names for what the paper calls exact, top-k (by faiss IVFFlat), 2LS, hierarchical, S-2LS and SD-2LS."""

PAPER_KL = {
    ("glove", 0.05): (1.9137, 0.0961, 0.5231, 0.0711, 0.0288),
    ("glove", 0.1): (3.9907, 0.0615, 0.2897, 0.0022, 0.0001),
    ("glove", 0.2): (5.4103, 0.0677, 0.3007, 0.0001, 1.2e-6),
    ("synth-balanced", 0.05): (0.0003, 0.5968, 9.4151, 0.3929, 0.6586),
    ("synth-balanced", 0.1): (0.1580, 0.3518, 2.6158, 0.2334, 0.0293),
    ("synth-balanced", 0.2): (2.2841, 0.1296, 0.6342, 0.0117, 0.0083),
    ("synth-unbalanced", 0.05): (0.0090, 0.8959, 10.3033, 0.7096, 0.1740),
    ("synth-unbalanced", 0.1): (0.2318, 0.2858, 3.1780, 0.1728, 0.0314),
    ("synth-unbalanced", 0.2): (2.2393, 0.1935, 0.9311, 0.0059, 0.0023),
}
"""Table 1: KL by set and temperature, of all PAPER_NAMES but the first.  Its GloVe has 1.2 million words."""

PAPER_LATENCY = {
    "glove": (10.30, 0.439, 0.235, 0.221, 0.245, 0.722),
    "synth-balanced": (8.543, 0.289, 0.222, 0.218, 0.213, 0.690),
    "synth-unbalanced": (8.619, 0.317, 0.213, 0.211, 0.214, 0.691),
}
"""Table 2: milliseconds of PAPER_NAMES."""

PAPER_CLUSTERS = 1024
PAPER_ITEMS = {"synth-balanced": 1_000_000, "synth-unbalanced": 1_000_000, "glove": 341_479}
"""Items that a set of ours must have to be shown beside the paper's figures (for GloVe: all that we have)."""
