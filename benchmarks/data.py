"""The real word vectors, or a sentence and none: a benchmark runs without a network too."""

import numpy as np

from softindex.errors import SoftindexError
from softindex.evaluate import datasets


def glove() -> np.ndarray | None:
    """341,479 GloVe word vectors of 100 dimensions, of length one; None, with a sentence, if they cannot be had."""
    try:
        return datasets.glove().vectors
    except SoftindexError as error:
        print(f"GloVe is left out: {error}")
        return None
