"""Any matrix is a mixture of two of low rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.errors import InputError
from softindex.mol import decompose


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    rank=st.integers(1, 6),
    kind=st.sampled_from(["normal", "identity", "zeros", "ones", "signs", "sparse"]),
    seed=st.integers(0, 10**6),
)
def test_the_mixture_of_two_matrices_of_low_rank_is_the_matrix(n, m, rank, kind, seed):
    rng = np.random.default_rng(seed)
    matrix = {
        "normal": lambda: rng.standard_normal((n, m)),
        "identity": lambda: np.eye(n, m),
        "zeros": lambda: np.zeros((n, m)),
        "ones": lambda: np.ones((n, m)),
        "signs": lambda: np.sign(rng.standard_normal((n, m))),
        "sparse": lambda: rng.standard_normal((n, m)) * (rng.random((n, m)) < 0.2),
    }[kind]()
    made = decompose(matrix, rank, 1e-9)
    assert np.abs(made.matrix() - matrix).max() < 1e-9
    assert ((made.weights >= 0) & (made.weights <= 1)).all()
    for part in (made.first, made.second):
        assert np.linalg.matrix_rank(part, tol=1e-9) <= rank


def test_the_identity_has_zeros_where_a_division_would_fail():
    made = decompose(np.eye(50), 2)
    large = decompose(1e12 * np.random.default_rng(0).standard_normal((6, 7)), 3)
    assert large.weights.shape == (6, 7)
    np.testing.assert_allclose(made.matrix(), np.eye(50), atol=1e-12)


def test_bad_input_is_refused():
    for matrix in (np.ones(3), np.ones((2, 0)), [[1.0, np.nan]], [["a"]]):
        with pytest.raises(InputError, match="matrix"):
            decompose(matrix, 2)
    with pytest.raises(InputError, match="rank"):
        decompose(np.eye(3), 0)
    with pytest.raises(InputError, match="epsilon"):
        decompose(np.eye(3), 1, 0.0)
    with pytest.raises(InputError, match="misses"):
        decompose([[1e308, -1e308], [1e308, 1e308]], 1)
    with pytest.raises(InputError, match="misses"):
        decompose(1e20 * np.random.default_rng(0).standard_normal((5, 5)), 2, 1e-9)
