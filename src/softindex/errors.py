"""The exceptions a caller may catch, each raised with one sentence that says what to do."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CorruptIndexError",
    "FormatVersionError",
    "InputError",
    "MethodError",
    "MissingDependencyError",
    "NotAnIndexError",
    "SaveError",
    "ServiceError",
    "ShardError",
    "SoftindexError",
    "StorageError",
    "UnknownIdError",
    "printable",
    "show",
    "with_article",
]


class SoftindexError(Exception):
    """Everything softindex raises on purpose."""


class InputError(SoftindexError, ValueError):
    """An argument is wrong: shape, dtype, range, not finite, duplicate ids."""


class UnknownIdError(InputError, LookupError):
    """An id that the index does not hold; `id` is that id."""

    def __init__(self, message: str, id: object = None) -> None:
        super().__init__(message)
        self.id = id


class MethodError(InputError):
    """A method that does not exist, or that this index was not built for."""


class MissingDependencyError(SoftindexError, ImportError):
    """A file format or feature needs an optional package that is not installed."""


class StorageError(SoftindexError):
    """A saved index could not be read or written."""


class NotAnIndexError(StorageError):
    """The path does not hold a saved index."""


class FormatVersionError(StorageError):
    """The index was saved by a newer version of softindex."""


class CorruptIndexError(StorageError):
    """A saved index is damaged: a checksum, a size or a value is wrong."""


class SaveError(StorageError):
    """The index could not be written; what was at the path before is untouched."""


class ServiceError(SoftindexError):
    """A server did not answer, or refused; `status` is the HTTP status it answered with, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ShardError(SoftindexError):
    """A shard of a distributed index did not answer, and no replica of it did; `shard` is its number."""

    def __init__(self, message: str, shard: int | None = None) -> None:
        super().__init__(message)
        self.shard = shard


def show(value: Any) -> str:
    """Return the value as it appears in an error message: on one line, cut to 60 characters."""
    try:
        # The repr of an array has several lines.
        text = printable(repr(value))
    # An int of more than 4300 digits has no repr.
    except ValueError:
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def printable(text: str) -> str:
    """Return the text with everything that is not a visible character or a space escaped, as `repr` writes it.

    Names come from files: an escape sequence in one could repaint the terminal, and a newline could add a line.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def with_article(name: str) -> str:
    """The name after "a" or "an"."""
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
