"""CSV files are read with the ids that they have, and one note says what was taken for what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.errors import InputError, SoftindexError
from softindex.readers import read_file
from softindex.vectors import read

ROWS = [[1.5, -2.0], [3.0, 4e-3]]


def source(path):
    with pytest.warns(UserWarning, match="read 2 rows of 2 numbers") as notes:
        found = read(path)
    assert len(notes) == 1
    np.testing.assert_array_equal(found.vectors, np.float32(ROWS))
    return found


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("1.5,-2\n3,4e-3\n", None),
        ("1.5, -2\r\n3, 4e-3", None),
        ("a,b\n1.5,-2\n3,4e-3\n", None),
        ("0,1\n1.5,-2\n3,4e-3\n", None),
        ('red,1.5,-2\n\n"blue, light",3,4e-3\n', ["red", "blue, light"]),
        ("id,x,y\n10,1.5,-2\n-7,3,4e-3\n", [10, -7]),
        ("x,y,ID\n1.5,-2,007\n3,4e-3,8\n", ["007", "8"]),
        ("name,x,y\nred,1.5,-2\nblue,3,4e-3\n", ["red", "blue"]),
        (",0,1\n5,1.5,-2\n6,3,4e-3\n", [5, 6]),
        ("\ufeff1.5,-2\n3,4e-3\n", None),
    ],
)
def test_headers_and_ids_are_recognised(put, text, ids):
    found = source(put("v.csv", text.encode()))
    assert (found.ids if ids is None else found.ids.tolist()) == ids


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"red\nblue\n", "holds no numbers"),
        (b"1,2\n3\n", "line 2 of .* has 1 fields; expected 2"),
        (b"1,2\n3,red\n", "line 2 of .* has 'red' where a number belongs"),
        (b"1,2\n3,\n", "where a number belongs"),
        (b"1,2\n3,\xff\n", "not UTF-8"),
    ],
)
def test_other_files_are_refused(put, content, sentence):
    with pytest.raises(InputError, match=sentence):
        read(put("v.csv", content))


@pytest.mark.filterwarnings("ignore:read .* rows:UserWarning")
@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet='0123456789,.\n"-eai\x00 ', max_size=60))
def test_any_text_gives_our_error_or_a_matrix(text, scratch):
    path = scratch / "v.csv"
    path.write_text(text, newline="")
    try:
        loaded = read_file(str(path), want_ids=True)
    except SoftindexError:
        return
    assert loaded.vectors.ndim == 2
    assert loaded.ids is None or len(loaded.ids) == len(loaded.vectors)
