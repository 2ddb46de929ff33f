"""Read what a command is given: an index, queries, and lists of ids."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import softindex
from softindex.errors import InputError, show, with_article
from softindex.live import is_catalogue
from softindex.vectors import read

__all__ = ["find_queries", "open_index", "parse_ids", "read_array", "read_choice", "read_ids", "read_queries"]


def open_index(path: Path) -> softindex.Index:
    """The saved index, or the present state of a catalogue; InputError for what these commands cannot query."""
    if is_catalogue(path):
        return softindex.open(path, read_only=True).snapshot()
    loaded: object = softindex.load(path)
    if not isinstance(loaded, softindex.Index):
        raise InputError(
            f"{path} holds {with_article(type(loaded).__name__)}, and this command needs an index made by "
            "softindex build; open it in Python with softindex.load."
        )
    return loaded


def read_queries(source: str) -> NDArray[Any]:
    """Queries (b, d) from a file, or one per line from standard input for "-"."""
    if source != "-":
        return np.atleast_2d(read(source).vectors)
    lines = [_parse_line(line, number) for number, line in enumerate(_standard_input(), 1) if line.strip()]
    if not lines:
        raise InputError("standard input is empty; write one query per line.")
    lengths = {len(line) for line in lines}
    if len(lengths) > 1:
        raise InputError(
            f"the queries on standard input have different lengths, {sorted(lengths)}; give all the same number of "
            "values."
        )
    return np.array(lines)


def _standard_input() -> list[str]:
    if sys.stdin is None:
        raise InputError("standard input is closed; write one query per line, or name a file.")
    try:
        return list(sys.stdin)
    except (OSError, ValueError) as error:
        raise InputError(f"standard input cannot be read as text ({error}); write one query per line.") from error


def _parse_line(line: str, number: int) -> list[float]:
    try:
        if line.lstrip().startswith("["):
            return [float(value) for value in json.loads(line)]
        return [float(value) for value in line.replace(",", " ").split()]
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(
            f"line {number} of standard input is not a query ({error}); write its numbers separated by spaces or "
            "commas, or as a JSON list."
        ) from error


def read_array(path: Path) -> NDArray[Any]:
    """The array in an .npy file."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as an array ({error}); save it with numpy.save.") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays; save one with numpy.save.")
    return loaded


def read_ids(path: Path) -> list[int] | list[str]:
    """Ids from a text file, one per line: integers if all lines are, otherwise strings."""
    lines = _read_lines(path)
    with contextlib.suppress(ValueError):
        numbers = [int(line) for line in lines]
        # 007 is a name, not a number: an id is an integer only if it would be written the same way again.
        if all(str(number) == line for number, line in zip(numbers, lines, strict=True)):
            return numbers
    return lines


def read_choice(text: str | None, index: softindex.Index, name: str) -> list[int] | list[str] | None:
    """Ids from the file with this name if there is one, otherwise from the text itself; None where there is none."""
    return None if text is None else parse_ids(text, strings=index.parameters["ids"] == "strings", name=name)


def parse_ids(text: str, *, strings: bool, name: str) -> list[int] | list[str]:
    """Ids from the file with this name if there is one, otherwise from the text; name: what the caller calls them."""
    path = Path(text)
    words = _read_lines(path) if _is_file(path) else text.split(",")
    if strings:
        return words
    try:
        return [int(word) for word in words if word.strip()]
    except ValueError as error:
        raise InputError(
            f"{name} is {show(text)}, which is neither a file nor a list of integer ids ({error}); write ids "
            "separated by commas, or the name of a text file with one id per line."
        ) from error


def find_queries(source: str | None, items: list[str], index: softindex.Index) -> NDArray[Any]:
    """Queries from a file or standard input, or the vectors of items of the index."""
    if (source is None) == (not items):
        raise InputError("pass queries: a file, - for standard input, or --item with an id of the index.")
    if source is not None:
        return read_queries(source)
    if index.parameters["ids"] == "strings":
        return index.vectors(items)
    try:
        return index.vectors([int(item) for item in items])
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"item is {', '.join(items)}, but this index has integer ids ({error}).") from error


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of ids ({error}); write one id per line.") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a list of ids can be too long for a file name
        return False
