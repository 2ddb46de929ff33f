"""The table of stored arrays accepts what an index saves and refuses everything else with one sentence."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from softindex.errors import CorruptIndexError
from softindex.fields import ADAPTIVE, INDEX, MIXTURE, VALUES, Field, Table, flatten, whole_number
from softindex.records import FORMAT_VERSION, Stored

TABLE = Table(
    "sample",
    (
        Field("vectors", "float32", "n d"),
        Field("sizes", "int64", "k+1"),
        Field("radii", "float32", "k", since=2, values="nonnegative"),
        Field("masses", "float64", "k", values="log"),
        Field("codes", "int8|int16", "n d", "codes"),
        Field("scales", "float32", "n", "codes", values="finite"),
        Field("places", "integer", "m", "list", since=2),
        Field("text", "uint8", "*", "list", since=2),
    ),
)
SIZES = {"n": 5, "d": 3, "k": 2, "k+1": 3}


def arrays(**changes):
    made = {
        "vectors": np.zeros((5, 3), np.float32),
        "sizes": np.zeros(3, np.int64),
        "radii": np.ones(2, np.float32),
        "masses": np.array([0.0, -np.inf]),
        "places": np.zeros(4, np.int32),
        "text": np.zeros(7, np.uint8),
        **changes,
    }
    return {name: array for name, array in made.items() if array is not None}


def check(groups=("list",), version=2, **changes):
    TABLE.check(Stored("sample", {}, arrays(**changes), version), SIZES, groups)


def test_arrays_that_fit_are_accepted():
    check()
    check(("list", "codes"), codes=np.zeros((5, 3), np.int16), scales=np.zeros(5, np.float32))


def test_an_older_file_may_lack_what_a_later_version_added():
    check((), version=1, radii=None, places=None, text=None)
    with pytest.raises(CorruptIndexError, match="radii is missing"):
        check((), version=2, radii=None, places=None, text=None)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_is_there_in_full_or_not_at_all(version):
    with pytest.raises(CorruptIndexError, match="text is missing"):
        check(version=version, text=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": None}, "vectors is missing"),
        ({"vectors": np.zeros((5, 3))}, "vectors is float64 where float32 is expected"),
        ({"vectors": np.zeros((5, 4), np.float32)}, "axis 1 of vectors has length 4 where d = 3 is expected"),
        ({"vectors": np.zeros(15, np.float32)}, "vectors has 1 axes where 2 are expected"),
        ({"sizes": np.zeros(2, np.int64)}, r"axis 0 of sizes has length 2 where k\+1 = 3 is expected"),
        ({"radii": np.array([1, -1], np.float32)}, "radii holds values"),
        ({"radii": np.array([1, np.nan], np.float32)}, "radii holds values"),
        ({"masses": np.array([np.inf, 0])}, "masses holds values"),
        ({"places": np.zeros(4, np.uint8)}, "places is uint8 where integer is expected"),
        ({"codes": np.zeros((5, 3), np.int8)}, "codes does not belong to it"),
        ({"surprise": np.zeros(1)}, "surprise does not belong to it"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes, message):
    with pytest.raises(CorruptIndexError, match=message):
        check(**changes)


def test_a_symbol_that_no_parameter_determines_is_the_same_everywhere():
    table = Table("sample", (Field("first", "int8", "m"), Field("second", "int8", "m 2")))
    stored = Stored("sample", {}, {"first": np.zeros(3, np.int8), "second": np.zeros((3, 2), np.int8)})
    table.check(stored, {"2": 2}, ())
    with pytest.raises(CorruptIndexError, match="axis 0 of second"):
        table.check(replace(stored, arrays={**stored.arrays, "second": np.zeros((4, 2), np.int8)}), {"2": 2}, ())


@pytest.mark.parametrize("value", [None, 1.0, "3", True, -1])
def test_a_parameter_that_is_no_whole_number_is_refused(value):
    with pytest.raises(CorruptIndexError, match="parameter items"):
        whole_number({"items": value}, "items")


@pytest.mark.parametrize("table", [INDEX, MIXTURE, ADAPTIVE], ids=lambda table: table.kind)
def test_every_array_is_described_once_for_each_group(table):
    described = [(field.name, field.group) for field in table.fields]
    assert len(set(described)) == len(described)
    assert {field.values for field in table.fields} <= {"", *VALUES}


def test_no_kind_is_saved_in_a_version_that_does_not_load():
    assert max(table.version for table in (INDEX, MIXTURE, ADAPTIVE)) == FORMAT_VERSION


def test_memory_is_counted_by_group():
    stored = arrays(codes=np.zeros((5, 3), np.int8), scales=np.zeros(5, np.float32))
    assert TABLE.memory(stored, ("codes",)) == 15 + 20
    assert TABLE.memory(stored, ("",)) == 60 + 24 + 8 + 16


def test_a_record_is_flattened_with_the_records_inside_it():
    @dataclass
    class Inner:
        forms: np.ndarray | None
        kind: str = "none"

    @dataclass
    class Outer:
        means: np.ndarray
        inner: Inner

    mean, form = np.zeros(1), np.ones(1)
    assert flatten(Outer(mean, Inner(form)), "tree_") == {"tree_means": mean, "tree_forms": form}
    assert flatten(Outer(mean, Inner(None))) == {"means": mean}
