"""Axes: every value lies on them, and their ticks are round; series can be told apart."""

import re

import numpy as np
import pytest

from softindex.evaluate.charts import Axis, Series, figure, legend, plot


@pytest.mark.parametrize("last", [1, 2, 3, 7, 12, 100])
def test_an_axis_of_whole_numbers_is_marked_at_whole_numbers(last):
    values = np.arange(1.0, last + 1)
    axis = Axis.around("epoch", values, whole=True)
    marked = [value for value, _ in axis.ticks()]
    assert marked
    assert all(value == int(value) and axis.low <= value <= axis.high for value in marked)
    assert ((axis.share(values) >= 0) & (axis.share(values) <= 1)).all()
    assert last > 6 or marked == values.tolist()


def test_many_series_differ_in_colour_or_mark():
    keys = re.findall(r'<path class="s\d" d="[^"]+"/>', legend([(str(style), style) for style in range(20)]))
    assert len(set(keys)) == 20
    axis = Axis("x", 0.0, 1.0)
    last = Series("19", np.array([0.5]), np.array([0.5]), 19, joined=True)
    assert keys[-1] in plot([last], axis, axis, title="", text="")


@pytest.mark.parametrize("length", [5, 20, 45, 200])
def test_labels_do_not_run_into_each_other(length):
    drawn = figure([("a", "<svg ></svg>"), ("b", "<svg ></svg>")], [("m" * length, 0)] * 9, title="", text="")
    places = [tuple(map(float, place)) for place in re.findall(r"translate\((\d+) (\d+)\)", drawn)]
    assert len(set(places)) == 9
    for one in places:
        assert all(other[0] - one[0] > 6 * length for other in places if other[1] == one[1] and other[0] > one[0])
    assert max(top for _, top in places) < float(re.search(r'viewBox="0 0 \d+ (\d+)"', drawn)[1])
