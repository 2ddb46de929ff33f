"""The manifest: one encoding each, and a typed refusal for every other sequence of bytes."""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.errors import (
    CorruptIndexError,
    FormatVersionError,
    InputError,
    NotAnIndexError,
    StorageError,
)
from softindex.records import Stored
from softindex.store.format import DTYPES, FORMAT_VERSION, MANIFEST_BYTES, decode, draft, encode, padded_bytes

STORED = Stored(
    "index",
    {"seed": 7, "scale": 0.1, "name": "naïve \ud800", "nested": {"list": [1, None, True, -0.0]}},
    {
        "means": np.zeros((3, 4), np.float32),
        "ids": np.zeros(0, np.int64),
        "dispersion.forms": np.zeros((), bool),
    },
)
DATA = encode(draft(STORED))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def forge(change: dict[str, Any], *, blob: dict[str, Any] | None = None) -> bytes:
    """A manifest that says something else (... removes a field), with the right form and checksum."""
    document = json.loads(DATA)
    del document["checksum"]
    document["blobs"][0].update(blob or {})
    document.update(change)
    document = {key: value for key, value in document.items() if value is not ...}
    compact = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(compact.encode()).hexdigest()
    return json.dumps(document, sort_keys=True, indent=2).encode() + b"\n"


def test_a_forged_manifest_without_a_change_is_accepted() -> None:
    assert forge({}) == DATA


def test_a_manifest_comes_back_as_it_was() -> None:
    manifest = decode(DATA, place="here")
    assert manifest == draft(STORED)
    assert manifest.version == FORMAT_VERSION
    assert manifest.parameters == STORED.parameters
    assert [(blob.name, blob.dtype, blob.shape) for blob in manifest.blobs] == [
        ("means", "float32", (3, 4)),
        ("ids", "int64", (0,)),
        ("dispersion.forms", "bool", ()),
    ]
    assert manifest.bytes == 128 + 64 + 128


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_parameters_come_back_equal(parameters: dict[str, Any]) -> None:
    data = encode(draft(Stored("index", parameters)))
    assert decode(data, place="here").parameters == parameters
    assert encode(decode(data, place="here")) == data


def test_tuples_and_other_mappings_come_back_as_lists_and_dicts() -> None:
    parameters = MappingProxyType({"shape": (1, 2), "scale": np.float64(0.5)})
    assert draft(Stored("index", parameters)).parameters == {"shape": [1, 2], "scale": 0.5}


@given(st.integers(0, 2**62))
def test_a_file_is_a_multiple_of_64_bytes_and_ends_in_at_least_64_of_padding(size: int) -> None:
    padded = padded_bytes(size)
    assert padded % 64 == 0
    assert 64 <= padded - size < 128


def test_every_flipped_bit_is_refused() -> None:
    for position in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[position] ^= 1 << bit
            with pytest.raises(StorageError):
                decode(bytes(damaged), place="here")


def test_every_truncation_removal_and_insertion_is_refused() -> None:
    for position in range(len(DATA)):
        inserted = [DATA[:position] + extra + DATA[position:] for extra in (b" ", b"\n", b"0", b"\0")]
        for damaged in (DATA[:position], DATA[:position] + DATA[position + 1 :], *inserted):
            if damaged != DATA:
                with pytest.raises(StorageError):
                    decode(damaged, place="here")
    for extra in (b" ", b"\n", b"\0", b"{}"):
        with pytest.raises(CorruptIndexError):
            decode(DATA + extra, place="here")


def test_the_same_content_written_another_way_is_refused() -> None:
    document = json.loads(DATA)
    for data in (
        json.dumps(document, sort_keys=True).encode(),
        json.dumps(dict(reversed(document.items())), indent=2).encode() + b"\n",
        json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        DATA.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + DATA,
    ):
        with pytest.raises(CorruptIndexError):
            decode(data, place="here")
    with pytest.raises(CorruptIndexError, match="not written the way"):
        decode(forge({"comment": "unknown"}), place="here")


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99, 10**30])
def test_a_newer_version_is_named_and_upgrading_advised(version: int) -> None:
    with pytest.raises(FormatVersionError, match=f"version {version} .*up to {FORMAT_VERSION}; upgrade"):
        decode(forge({"version": version, "unheard-of": []}), place="here")
    # A later format may have another checksum; the version is said all the same, and so is the doubt.
    with pytest.raises(FormatVersionError, match="may be damaged"):
        decode(DATA.replace(b'"version": %d' % FORMAT_VERSION, b'"version": %d' % version), place="here")


@pytest.mark.parametrize("version", [0, -1, 1.0, "1", True, None, [1]])
def test_a_version_that_is_no_version_is_damage(version: Any) -> None:
    with pytest.raises(CorruptIndexError):
        decode(forge({"version": version}), place="here")


@pytest.mark.parametrize("data", [b"{}", b"[]", b"null", b'{"format": "other"}', b'{"format": ["softindex"]}'])
def test_another_programs_manifest_is_not_an_index(data: bytes) -> None:
    with pytest.raises(NotAnIndexError):
        decode(data, place="here")


@pytest.mark.parametrize(
    "blob",
    [
        {"shape": [2**60]},
        {"shape": [2**40, 2**40]},
        {"shape": [10**4000, 10**4000]},
        {"shape": [0, 2**62], "bytes": 64},
        {"shape": [-3, -4]},
        {"shape": [-1]},
        {"shape": [3.0, 4]},
        {"shape": [True, 12]},
        {"shape": [3, "4"]},
        {"shape": "34"},
        {"shape": {"3": 4}},
        {"shape": None},
        {"shape": [1] * 33 + [12]},
        {"dtype": "object"},
        {"dtype": ">f4"},
        {"dtype": "complex64"},
        {"dtype": "float128"},
        {"dtype": "V4"},
        {"dtype": ["float32"]},
        {"dtype": None},
        {"bytes": 64},
        {"bytes": 192},
        {"bytes": 128.0},
        {"bytes": -128},
        {"bytes": None},
        {"checksum": "0" * 63},
        {"checksum": "G" * 64},
        {"checksum": 0},
    ],
)
def test_a_blob_that_cannot_be_is_refused(blob: dict[str, Any]) -> None:
    with pytest.raises(CorruptIndexError):
        decode(forge({}, blob=blob), place="here")


NAMES = [
    "",
    ".",
    "..",
    "../means",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "a\0b",
    ".hidden",
    "a..b",
    "a ",
    "é",
    "x" * 101,
]


@pytest.mark.parametrize("name", [*NAMES, "IDS", "ids", 3, None, ["means"]])
def test_a_name_that_could_leave_the_directory_or_clash_is_refused(name: Any) -> None:
    with pytest.raises(CorruptIndexError):
        decode(forge({}, blob={"name": name}), place="here")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "../x"},
        {"kind": None},
        {"kind": ""},
        {"parameters": []},
        {"parameters": None},
        {"parameters": {"a": float("inf")}},
        {"parameters": {"a": float("nan")}},
    ],
)
def test_other_impossible_content_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptIndexError):
        decode(forge(change), place="here")


@pytest.mark.parametrize("missing", ["blobs", "kind", "parameters", "version"])
def test_a_manifest_that_lacks_a_field_is_refused(missing: str) -> None:
    with pytest.raises(CorruptIndexError):
        decode(forge({missing: ...}), place="here")


def test_a_manifest_without_a_checksum_is_refused() -> None:
    document = json.loads(DATA)
    del document["checksum"]
    with pytest.raises(CorruptIndexError, match="checksum"):
        decode(json.dumps(document, sort_keys=True, indent=2).encode() + b"\n", place="here")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"format": "softindex", "version": 1, "parameters": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"format": "softindex", "version": 1, "parameters": ' + b'{"a":' * 50_000,
        b'{"format": "softindex", "version": ' + b"9" * 5000 + b"}",
        b'{"format": "softindex", "version": 1, "parameters": 1e999}',
        b'{"format": "softindex", "version": 1, "parameters": NaN}',
        b" " * (MANIFEST_BYTES + 1),
        b"",
        b"\xff\xfe",
    ],
    ids=range(9),
)
def test_hostile_json_is_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(CorruptIndexError):
        decode(data, place="here")


def test_deep_nesting_is_refused_without_writing_out_its_indentation() -> None:
    inner: Any = [0] * 20_000
    for _ in range(400):
        inner = [inner]
    document = {"format": "softindex", "version": 1, "kind": "index", "parameters": {"a": inner}, "blobs": []}
    compact = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(compact.encode()).hexdigest()
    with pytest.raises(CorruptIndexError):
        decode(json.dumps(document).encode(), place="here")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_raises_only_storage_errors(data: bytes) -> None:
    with pytest.raises(StorageError):
        decode(data, place="here")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["kind", "parameters", "blobs", "version"]),
    json_values,
    st.dictionaries(st.sampled_from(["name", "dtype", "shape", "bytes", "checksum"]), json_values, min_size=1),
)
def test_fields_of_the_wrong_type_raise_only_storage_errors(field: str, value: Any, blob: dict[str, Any]) -> None:
    for data in (forge({}, blob=blob), forge({field: value})):
        try:
            manifest = decode(data, place="here")
        except StorageError:
            continue
        assert encode(manifest) == data


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array(["a"]),
        np.array([b"a"]),
        np.array([1j]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, np.longdouble),
        np.zeros((1,) * 33) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else np.zeros(1, complex),
        np.broadcast_to(np.float64(0), (2**59,)),
        [1.0, 2.0],
    ],
    ids=range(10),
)
def test_an_array_that_cannot_be_stored_is_refused_before_anything_is_written(array: Any) -> None:
    with pytest.raises(InputError, match=r"^this cannot be saved: .*means"):
        draft(Stored("index", {}, {"means": array}))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_no_load_would_accept_is_refused_when_saving(name: str) -> None:
    with pytest.raises(InputError):
        draft(Stored("index", {}, {name: np.zeros(1)}))
    with pytest.raises(InputError):
        draft(Stored(name, {}))


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(InputError, match="case"):
        draft(Stored("index", {}, {"Means": np.zeros(1), "means": np.zeros(1)}))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: 2}, {1, 2}, b"bytes", np.int64(3), np.zeros(2), object(), 10**5000],
    ids=range(9),
)
def test_parameters_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(InputError):
        draft(Stored("index", {"list": [value]}))


def test_endless_and_oversized_parameters_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="nested"):
        draft(Stored("index", {"endless": endless}))
    with pytest.raises(InputError, match="store long lists as arrays"):
        draft(Stored("index", {"long": "x" * MANIFEST_BYTES}))
    with pytest.raises(InputError):
        draft(Stored("index", [1, 2]))  # type: ignore[arg-type]


def test_the_types_of_elements_are_the_plain_little_endian_numbers() -> None:
    assert len(DTYPES) == 12
    assert all(dtype.byteorder in "<|=" and dtype.kind in "biuf" for dtype in DTYPES.values())
