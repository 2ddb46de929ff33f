"""An audit with slates: what it times, and what an error does to importance weights."""

import numpy as np
import pytest

import softindex
from softindex.evaluate.report import render
from softindex.evaluate.slates import weight_error


@pytest.fixture(scope="module")
def index():
    vectors = np.random.default_rng(0).standard_normal((3000, 8)).astype(np.float32)
    return softindex.build(vectors, clusters=40)


def test_every_method_has_its_slates(index):
    found = index.audit(count=10, temperatures=0.5, methods=["exact", "certified", "sd-2ls", "sd-2ls:0"], slate=5)
    for row in found.rows:
        decided = row.decided
        assert decided.slate == 5
        assert decided.excluded == 300
        times = (decided.slate_microseconds, decided.excluding_microseconds, decided.slate_excluding_microseconds)
        assert min(times) > 0
        assert len(row.cells()) == len(found.rows[0].cells())
    by_method = {row.method: row for row in found.rows}
    assert by_method["exact"].decided.weight_error == 0
    assert by_method["sd-2ls:0"].decided.weight_error is None
    default = by_method["sd-2ls"]
    assert default.decided.weight_error == pytest.approx(2 * default.stated_error)
    # The later steps of a slate are drawn from what the likeliest items leave, which is known less well.
    assert default.decided.slate_weight_error >= 2 * (1 - (1 - default.stated_error) ** 5) - 0.01
    assert found.to_dict()["rows"][0]["decided"]["slate"] == 5


def test_without_slates_nothing_of_them_is_shown(index):
    found = index.audit(count=5, temperatures=0.5, methods=["exact"])
    assert found.rows[0].decided is None
    assert not any("slate" in name for name in found.rows[0].cells())
    assert "Slates and exclusions" not in render(found)


def test_the_report_has_the_table_of_slates(index):
    found = index.audit(count=5, temperatures=0.5, methods=["exact", "sd-2ls"], slate=5)
    page = render(found)
    assert "Slates and exclusions" in page
    assert "weight error, slate of 5" in page


def test_the_mean_error_of_a_weight_is_twice_the_total_variation(index):
    """The identity behind the column, on a law that is far from the softmax."""
    query, ids = np.random.default_rng(1).standard_normal(8), np.arange(3000)
    softmax = np.exp(index.log_prob(query, ids, temperature=0.5, method="exact"))
    law = np.exp(index.log_prob(query, ids, temperature=0.5, probes=0))
    total_variation = np.abs(softmax - law).sum() / 2
    assert (law * np.abs(softmax / law - 1)).sum() == pytest.approx(weight_error(total_variation), rel=1e-6)


def test_the_bound_of_a_slate_holds():
    """All ordered pairs of eight items."""
    vectors = np.random.default_rng(2).standard_normal((8, 3)).astype(np.float32)
    index = softindex.build(vectors, clusters=3)
    pairs = np.array([(a, b) for a in range(8) for b in range(8) if a != b])
    query = np.tile(np.random.default_rng(3).standard_normal(3), (len(pairs), 1))
    asked = {"temperature": 0.5, "replace": False}
    softmax, law = (
        np.exp(index.log_prob(query, pairs, **asked, **options).sum(axis=1))
        for options in ({"method": "exact"}, {"probes": 0})
    )
    steps = []
    for first in [None, *range(8)]:
        exclude = [] if first is None else [first]
        one, other = (
            np.exp(index.log_prob(query[0], np.arange(8), temperature=0.5, exclude=exclude, **options))
            for options in ({"method": "exact"}, {"probes": 0})
        )
        steps.append(np.abs(one - other).sum() / 2)
    assert (law * np.abs(softmax / law - 1)).sum() <= weight_error(max(steps), 2) + 1e-9


@pytest.mark.parametrize(("slate", "message"), [(0, "slate is 0"), (1501, "at most half"), (2.0, "slate is 2.0")])
def test_slates_that_cannot_be_are_refused(index, slate, message):
    with pytest.raises(softindex.InputError, match=message):
        index.audit(count=5, slate=slate)
