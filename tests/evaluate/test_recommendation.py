"""The recommended method is the fastest of those that are close enough, and numbers are written short."""

import numpy as np

from softindex.evaluate import Measured, Row
from softindex.evaluate.numbers import power, short
from softindex.evaluate.recommendation import recommend


def row(method, *, kl=0.0, variation=0.0, microseconds=1.0, temperature=0.1, proven=False):
    exactly = {name: Measured(value, value, value) for name, value in (("kl", kl), ("total_variation", variation))}
    rest = dict.fromkeys(("reverse_kl", "ratio_spread", "log_partition_error"), Measured(0, 0, 0))
    return Row(
        method=method,
        label=method,
        temperature=temperature,
        stated_error=None,
        microseconds=Measured(microseconds, microseconds, microseconds),
        speedup=1000 / microseconds,
        items_scored=1.0,
        memory=1,
        proven=proven,
        **exactly,
        **rest,
    )


def test_the_fastest_of_the_close_ones_is_recommended():
    rows = [
        row("exact", microseconds=1000),
        row("2ls:0", variation=0.5, microseconds=10),
        row("sd-2ls:16", kl=7.2e-4, variation=0.01, microseconds=1000 / 130),
        row("sd-2ls", kl=1e-4, variation=0.005, microseconds=20),
    ]
    name, sentence = recommend(rows, 0.03)
    assert name == "sd-2ls:16"
    assert sentence == "sd-2ls with 16 probes: KL 8e-4 and total variation 1e-2, at 130 times the speed of exact."
    assert recommend(rows, 0.007)[1].startswith("sd-2ls with adaptive probes: KL 1e-4")
    assert recommend(rows, 0.001)[1].startswith("exact: no other method is both faster and within")
    assert recommend(rows[1:2], 0.03)[0] is None
    assert "closest, 2ls with no probes, is 0.50 off: audit certified" in recommend(rows[1:2], 0.03)[1]
    assert recommend([row("sd-2ls:1", microseconds=2000)], 0.03)[1].endswith("but exact is faster here.")
    assert "with 1 probe:" in recommend([row("sd-2ls:1", microseconds=2000)], 0.03)[1]


def test_of_methods_about_as_fast_the_closest_is_recommended():
    rows = [row("s-2ls:0", variation=0.02, microseconds=10), row("sd-2ls", variation=0.001, microseconds=11)]
    assert recommend(rows, 0.03)[0] == "sd-2ls"


def test_one_bad_temperature_is_enough_to_lose_the_recommendation():
    rows = [row("exact", microseconds=1000, temperature=t) for t in (0.1, 0.2)]
    rows += [row("s-2ls:0", variation=v, microseconds=5, temperature=t) for t, v in ((0.1, 0.2), (0.2, 0.001))]
    rows += [row("certified", microseconds=m, temperature=t, proven=True) for t, m in ((0.1, 100), (0.2, 50))]
    assert recommend(rows, 0.03)[1] == "certified: the exact softmax, at 10 to 20 times the speed of exact."


def test_numbers_are_written_short():
    values = (0, 8.2e-4, 0.0123, 0.123, 1.52, 12345.6, 3e7, 0.01, 0.0999, 9.96, np.inf)
    assert [short(value) for value in values] == [
        "0", "8.2e-4", "0.012", "0.12", "1.5", "12,346", "3.0e7", "0.010", "0.10", "10.0", "∞",
    ]  # fmt: skip
    assert [power(7.2e-4, 1), power(7.2e-4, 1, up=True), power(9.7e-3, 1), power(0, 1), power(2e-3, 1, up=True)] == [
        "7e-4", "8e-4", "1e-2", "0", "2e-3",
    ]  # fmt: skip
