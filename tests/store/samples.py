"""A small thing to save, and what it means to come back the same."""

import numpy as np

from softindex.records import Stored

SMALL = Stored(
    "index",
    {"seed": 3, "method": "sd-2ls"},
    {
        "means": np.arange(12, dtype=np.float32).reshape(3, 4),
        "sizes": np.array([1, 2, 3], np.int64),
        "empty": np.zeros((0, 5), np.float16),
    },
)


def assert_same(loaded: Stored, expected: Stored) -> None:
    """Equal to the bit, element types, shapes and order of names included."""
    assert loaded.kind == expected.kind
    assert loaded.parameters == expected.parameters
    assert list(loaded.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert loaded.arrays[name].dtype == array.dtype.newbyteorder("<")
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
