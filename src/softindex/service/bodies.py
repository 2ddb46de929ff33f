"""The bodies of requests: the names of the library's arguments, and their types.  The library checks the values."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from numpy.typing import NDArray

from softindex.errors import InputError

__all__ = [
    "Encoded",
    "LawBody",
    "LogPartitionBody",
    "LogProbBody",
    "QueryBody",
    "RemoveBody",
    "SampleBody",
    "TopKBody",
    "UpsertBody",
    "read_matrix",
]

Id = int | str
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_ENCODED = {
    "type": "object",
    "required": ["float32", "shape"],
    "properties": {
        "float32": {"type": "string", "contentEncoding": "base64"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 3},
    },
    "additionalProperties": False,
}
_IDS = {"type": "array", "items": {"type": ["integer", "string"]}}


def _matrix(description: str) -> Meta:
    nested = {"type": "array", "items": _NUMBERS}
    forms = [_NUMBERS, nested, {"type": "array", "items": nested}, {"type": "string"}, _ENCODED]
    return Meta(description=description, extra_json_schema={"anyOf": forms})


Matrix = Annotated[
    Raw,
    _matrix(
        "Numbers: (d,) for one, (b, d) for many; or base64 of little-endian float32, as a string (b, d), or with its "
        "shape. An index of learned similarities may take components, (b, p, d)."
    ),
]
Ids = Annotated[Any, Meta(extra_json_schema={"anyOf": [_IDS, {"type": "array", "items": _IDS}]})]
_MASK = {"type": "array", "items": {"type": "boolean"}}
Excluded = Annotated[
    Any,
    Meta(
        description="Ids, or a boolean for each item in the order of the ids; for all queries, or a list per query.",
        extra_json_schema={
            "anyOf": [
                _IDS,
                _MASK,
                {"type": "array", "items": {"anyOf": [_IDS, {"type": "null"}]}},
                {"type": "array", "items": _MASK},
            ]
        },
    ),
]
Temperatures = Annotated[float | list[float], Meta(description="One for all queries, or one for each.")]
Seed = Annotated[
    int | str, Meta(description="From 0 to 2^64 - 1; as a string from 2^53 on, which JavaScript cannot read otherwise.")
]


class QueryBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every call by query has: exactly one of `queries`, `item` and `items`."""

    queries: Matrix | UnsetType = UNSET
    item: Id | UnsetType = UNSET
    """Take the vector of this item as the query."""
    items: list[Id] | UnsetType = UNSET
    """Take the vectors of these items as the queries."""
    exclude: Excluded | UnsetType = UNSET
    allow: Excluded | UnsetType = UNSET
    unknown: str | UnsetType = UNSET
    users: Any | UnsetType = UNSET


class LawBody(QueryBody, kw_only=True, forbid_unknown_fields=True):
    """What every law has."""

    temperature: Temperatures
    method: str | UnsetType = UNSET
    probes: int | UnsetType = UNSET
    tolerance: float | UnsetType = UNSET


class SampleBody(LawBody, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `sample`."""

    n: int = 1
    replace: bool | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    k: int | UnsetType = UNSET
    candidates: int | UnsetType = UNSET
    seed: Seed | UnsetType = UNSET
    log: bool = True
    """false: the draws are not shown to anybody, and stay out of the log of decisions."""


class LogProbBody(LawBody, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `log_prob`."""

    ids: Ids
    replace: bool | UnsetType = UNSET
    """false: each row of `ids` is a slate, and each step is drawn from what the steps before it left."""
    top_p: float | UnsetType = UNSET
    k: int | UnsetType = UNSET
    missing: str | UnsetType = UNSET


class LogPartitionBody(LawBody, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `log_partition`."""

    width: float | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    seed: Seed | UnsetType = UNSET


class TopKBody(QueryBody, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `top_k`."""

    k: int
    temperature: Temperatures | UnsetType = UNSET
    probes: int | UnsetType = UNSET
    recall: float | UnsetType = UNSET
    method: str | UnsetType = UNSET
    candidates: int | UnsetType = UNSET
    gap: float | UnsetType = UNSET


class UpsertBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `upsert`."""

    ids: list[Id]
    vectors: Matrix
    log_bias: list[float] | UnsetType = UNSET
    bias: list[float] | UnsetType = UNSET


class RemoveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `remove`."""

    ids: list[Id]
    unknown: str | UnsetType = UNSET


class Encoded(msgspec.Struct, forbid_unknown_fields=True):
    """An array of float32 in base64."""

    float32: str
    shape: list[int]


_ONE, _TWO, _THREE = (msgspec.json.Decoder(kind) for kind in (list[float], list[list[float]], list[list[list[float]]]))
_TEXT, _ENCODED_DECODER = msgspec.json.Decoder(str), msgspec.json.Decoder(Encoded)


def read_matrix(raw: Raw, name: str, dim: int | None) -> NDArray[Any]:
    """The array of numbers in any of the forms that `Matrix` describes; dim: columns of base64 without a shape."""
    text = bytes(raw)
    if text[:1] == b'"':
        return _rows(_floats(_TEXT.decode(text), name), name, dim)
    if text[:1] == b"{":
        found = _ENCODED_DECODER.decode(text)
        values = _floats(found.float32, name)
        if any(length < 0 for length in found.shape) or int(np.prod(found.shape, dtype=object)) != len(values):
            raise InputError(f"{name} has {len(values)} numbers, which is not its shape {found.shape}; fix the shape.")
        return values.reshape(found.shape)
    depth = len(text) - len(text.lstrip(b"[ \t\r\n"))
    depth = min(text[:depth].count(b"["), 3)
    rows = (_ONE, _ONE, _TWO, _THREE)[depth].decode(text)
    try:
        with np.errstate(over="ignore"):
            return np.array(rows, np.float32)
    except ValueError as error:
        raise InputError(
            f"{name} has rows of different lengths; expected the same number of values in each."
        ) from error


def rows_of_bytes(body: bytes, name: str, dim: int | None) -> NDArray[Any]:
    """Rows (b, d) of little-endian float32."""
    if len(body) % 4:
        raise InputError(f"{name} has {len(body)} bytes, which is no multiple of 4; send little-endian float32.")
    return _rows(np.frombuffer(body, "<f4"), name, dim)


def _rows(values: NDArray[Any], name: str, dim: int | None) -> NDArray[Any]:
    if dim is None:
        raise InputError(f"{name} needs its shape here; send an object with float32 and shape.")
    if len(values) % dim:
        raise InputError(
            f"{name} has {len(values)} numbers, which is no multiple of the {dim} dimensions of this index."
        )
    return values.reshape(-1, dim)


def _floats(text: str, name: str) -> NDArray[Any]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{name} is not base64 ({error}); encode the bytes of a float32 array.") from error
    if len(raw) % 4:
        raise InputError(f"{name} has {len(raw)} bytes, which is no multiple of 4; send little-endian float32.")
    return np.frombuffer(raw, "<f4")
