"""Arrays for the tests of what is checked at the door."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def matrix(rows=5, dimensions=3, dtype=np.float32):
    return np.random.default_rng(0).standard_normal((rows, dimensions)).astype(dtype)


@st.composite
def matrices(draw, dtypes, shapes, values):
    """Arrays of one of the dtypes, whose values may overflow it."""
    array = draw(hnp.arrays(np.float64, shapes, elements=st.sampled_from(values)))
    with np.errstate(over="ignore"):
        return array.astype(draw(st.sampled_from(dtypes)))
