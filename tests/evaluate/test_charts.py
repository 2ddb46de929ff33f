"""Axes: every value lies on them, and their ticks are round."""

import numpy as np
import pytest

from softindex.evaluate.charts import Axis


@pytest.mark.parametrize("last", [1, 2, 3, 7, 12, 100])
def test_an_axis_of_whole_numbers_is_marked_at_whole_numbers(last):
    values = np.arange(1.0, last + 1)
    axis = Axis.around("epoch", values, whole=True)
    marked = [value for value, _ in axis.ticks()]
    assert marked
    assert all(value == int(value) and axis.low <= value <= axis.high for value in marked)
    assert ((axis.share(values) >= 0) & (axis.share(values) <= 1)).all()
    assert last > 6 or marked == values.tolist()
