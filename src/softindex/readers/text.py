"""Read word vectors in text form, as published by GloVe, word2vec and fastText."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import rows_per_block
from softindex.errors import InputError
from softindex.readers.tables import BLOCK_VALUES, Loaded, Request

LONGEST_LINE = 1 << 26
"""Bytes: room for millions of numbers."""
LINE_END = b" \r\n"
"""Only these end a line: words may contain other blanks, such as the no-break space."""


def read_text(request: Request) -> Loaded:
    """Read lines `word v1 ... vd` after an optional line `n d`: vectors (n, d) float32, with the words as ids."""
    path = request.path
    opener: Callable[[str], Any] = gzip.open if path.lower().endswith(".gz") else _open
    with opener(path) as file:
        read = _lines(path, file)
        first = next(read, b"")
        header = _header(first)
        lines = enumerate(read, 2) if header else enumerate(chain([first], read), 1)
        dimensions = header[1] if header else first.rstrip(LINE_END).count(b" ")
        if dimensions < 1:
            raise InputError(f"line 1 of {path} holds no vector; expected a word and its values, or 'n d'.")
        words, vectors = _parse(path, lines, dimensions)
    if header and header[0] != len(words):
        raise InputError(
            f"{path} states {header[0]} words in line 1 but holds {len(words)}; it may be cut off: download it again."
        )
    if words and all(map(_is_fraction, words)):
        raise InputError(
            f"every line of {path} begins with a decimal number where a word belongs; if it contains only numbers, "
            "save them with numpy.save and pass the .npy file."
        )
    return Loaded(vectors, words)


def _lines(path: str, file: Any) -> Iterator[bytes]:
    """The lines, none of them longer than LONGEST_LINE: a small .gz file may hold one of many gigabytes."""
    for number in count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"line {number} of {path} is longer than {LONGEST_LINE} bytes; expected a line per vector."
            )
        yield line


def _is_fraction(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return not word.lstrip("+-").isdigit()


def _is_number(field: str) -> bool:
    """Whether a field is a value rather than the end of a word; "nan" and "infinity" are words too."""
    try:
        float(field)
    except ValueError:
        return False
    return any(character.isdigit() for character in field)


def _open(path: str) -> BinaryIO:
    return open(path, "rb")


def _header(line: bytes) -> tuple[int, int] | None:
    """Return (n, d) if the line consists of two integers, as word2vec writes it."""
    fields = line.split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _parse(path: str, lines: Iterable[tuple[int, bytes]], dimensions: int) -> tuple[list[str], NDArray[np.float32]]:
    words: list[str] = []
    vectors = np.empty((0, 0), np.float32)
    # A number beyond float32 becomes inf here; the check for NaN refuses it later and names its row.
    with np.errstate(over="ignore"):
        for number, line in lines:
            if not line.strip(LINE_END):
                continue
            word, values = _parse_line(path, number, line, dimensions)
            if len(words) == len(vectors):
                # Grow while reading: the count in the first line may be wrong by any amount.
                rows = max(2 * len(vectors), rows_per_block(BLOCK_VALUES, dimensions))
                vectors.resize((rows, dimensions), refcheck=False)
            vectors[len(words)] = values
            words.append(word)
    vectors.resize((len(words), dimensions), refcheck=False)
    return words, vectors


def _parse_line(path: str, number: int, line: bytes, dimensions: int) -> tuple[str, list[float]]:
    # From the right: some words contain spaces.
    word, *fields = line.rstrip(LINE_END).rsplit(b" ", dimensions)
    if len(fields) != dimensions or not word:
        raise InputError(
            f"line {number} of {path} has {len(fields)} values; expected a word and {dimensions} values, "
            "separated by single spaces."
        )
    try:
        text, values = word.decode("utf-8"), list(map(float, fields))
    except UnicodeDecodeError as error:
        raise InputError(f"line {number} of {path} is not UTF-8; convert the file to UTF-8.") from error
    except ValueError as error:
        raise InputError(f"line {number} of {path} is malformed: {error}; expected decimal numbers.") from error
    if " " in text and _is_number(text.rpartition(" ")[2]):
        raise InputError(
            f"line {number} of {path} has more than {dimensions} values; expected a word and {dimensions} values. If "
            "its word ends in a number, join the two by another character than a space."
        )
    return text, values
