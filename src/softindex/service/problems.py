"""Errors as RFC 9457 problem details: the sentence of the library, and never a stack trace."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from softindex.errors import (
    CorruptIndexError,
    InputError,
    MethodError,
    SaveError,
    ShardError,
    SoftindexError,
    UnknownIdError,
)

__all__ = ["MEDIA_TYPE", "TYPE_PREFIX", "Problem", "ProblemDetails", "as_problem"]

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:softindex:problem:"

_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownIdError, 422, "unknown-id"),
    (MethodError, 422, "method"),
    (InputError, 422, "input"),
    (SaveError, 503, "save"),
    (ShardError, 503, "shard"),
    (CorruptIndexError, 500, "corrupt-index"),
    (SoftindexError, 500, "softindex"),
)


class ProblemDetails(msgspec.Struct, kw_only=True):
    """The body of an error."""

    type: str
    """What kind of problem it is, for programs: urn:softindex:problem:input and so on."""
    title: str
    status: int
    detail: str
    """What was wrong and what to do, in one sentence."""
    request_id: str


class Problem(Exception):  # noqa: N818, it is an answer
    """Answers the request with this status and sentence."""

    def __init__(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.headers = status, kind, detail, dict(headers or {})

    def body(self, request_id: str) -> bytes:
        """The JSON to send."""
        title = HTTPStatus(self.status).phrase
        return msgspec.json.encode(
            ProblemDetails(
                type=TYPE_PREFIX + self.kind, title=title, status=self.status, detail=self.detail, request_id=request_id
            )
        )


def as_problem(error: Exception) -> Problem | None:
    """The answer to what the library raised; None for an error that is nobody's fault but ours."""
    if isinstance(error, Problem):
        return error
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return Problem(status, name, str(error))
    if isinstance(error, MemoryError):
        return Problem(413, "too-large", "the answer does not fit into memory; ask for less at a time.")
    return None
