"""Every check of a caller's argument: each returns the value in the form the library uses, or raises one sentence."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import as_float32, blocks, rows_per_block
from softindex.errors import InputError, show
from softindex.notes import note_rounded
from softindex.records import Floats, Ids

__all__ = [
    "as_array",
    "check_choice",
    "check_confidence",
    "check_count",
    "check_flag",
    "check_fraction",
    "check_ids",
    "check_matrix",
    "check_matrix_shape",
    "check_per_item",
    "check_positive",
    "check_queries",
    "check_room",
    "check_seed",
    "check_share",
    "check_temperature",
    "check_temperatures",
    "check_threads",
    "check_vectors",
    "too_many",
]

MAX_SQUARED_NORM = 1e30
"""Of items and of queries: a dot product then stays below 1e30, far from the 3e38 of float32."""
TEMPERATURES = (1e-30, 1e30)
MAX_LOG_BIAS = 1e6
MAX_COUNT = 2**63 - 1
MAX_THREADS = 1024
"""More is a typo; the operating system would refuse to start them half way."""
MAX_ID_TABLE_BYTES = 1 << 33
"""String ids are kept at the width of the longest: one long id among millions must not take all memory."""
MOST_RESULTS = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 48
"""Draws that fit into the memory of the machine, with what is known of each until its item is chosen."""
BLOCK_VALUES = 1 << 20
"""Values checked at a time: 4 MB of float32 stays near the cache."""

FLOAT32 = np.dtype(np.float32)
FLOAT16 = np.dtype(np.float16)

# Unlike np.dot, vdot does not warn about overflow, and so needs no expensive errstate around it.  Bound to a name
# because the attribute lookup is a tenth of the cost of checking one query.
_dot = np.vdot

# Seeded by the system, and again in every forked child: workers must not repeat each other's draws.  Asking the system
# for every seed would take a microsecond.
_fresh = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh.seed)


def check_queries(queries: Any, dim: int, *, owner: str = "this index has") -> tuple[Floats, bool]:
    """Return the queries (b, d) float32, C-contiguous, and whether a single 1-D query was given.

    Copied before it is checked, because another thread may change the caller's array at any time; a read-only array
    that fits is used as it is.  owner: who has dim dimensions, in a sentence.
    """
    # Every single query of a server passes here: a float32 array of the right shape takes about a microsecond.
    if type(queries) is np.ndarray and queries.dtype is FLOAT32 and queries.shape == (dim,):
        copied = queries.copy()
        if _dot(copied, copied) <= MAX_SQUARED_NORM:
            return copied[None], True
    return _convert_queries(as_array(queries, "queries"), dim, owner)


def _convert_queries(array: NDArray[Any], dim: int, owner: str) -> tuple[Floats, bool]:
    if array.dtype.kind not in "fiu":
        raise InputError(f"queries are {array.dtype}; expected floats: pass a float32 array.")
    if array.ndim not in (1, 2):
        raise InputError(f"queries have shape {array.shape}; expected (d,) for one query or (b, d) for many.")
    if array.shape[-1] != dim:
        have, them = ("query has", "it") if array.ndim == 1 else ("queries have", "them")
        raise InputError(f"{have} {array.shape[-1]} dimensions but {owner} {dim}; encode {them} with the same model.")
    if len(array) == 0:
        raise InputError("queries have no rows; pass at least one.")
    # A float64 beyond float32 becomes inf and is refused below; one too small becomes zero.
    with np.errstate(over="ignore", under="ignore"):
        if array.flags.writeable:
            block = np.array(array, np.float32, order="C")
        else:
            block = np.require(array, np.float32, ["C_CONTIGUOUS", "ALIGNED"])
    single = block.ndim == 1
    block = block.reshape(-1, dim)
    if not _dot(block, block) <= MAX_SQUARED_NORM:
        _check_rows(block, 0, "the query" if single else "query {row}")
    return block, single


def check_vectors(vectors: NDArray[Any], *, block_rows: int | None = None, name: str = "vectors") -> None:
    """Refuse NaN, inf and rows longer than 1e15 in vectors (n, d), in one pass and a few MB of memory."""
    rows, dimensions = vectors.shape
    for part in blocks(rows, block_rows or rows_per_block(BLOCK_VALUES, dimensions)):
        block = vectors[part]
        if not _is_tame(block):
            _check_rows(np.asarray(block, np.float32), part.start, f"row {{row}} of the {name}")


def _is_tame(block: NDArray[Any]) -> bool:
    """Whether block (m, d) is certainly good, decided at memory speed; False only means to look closer."""
    if block.dtype == FLOAT16:
        # Casting is ten times slower than reading the exponent: all ones means NaN or inf, and a row that is
        # finite in float16 cannot be too long.
        return bool(((block.view(np.uint16) & 0x7FFF) < 0x7C00).all())
    # NaN and inf spread through a sum, and no square is negative.
    return bool(_dot(block, block) <= MAX_SQUARED_NORM)


def _check_rows(block: Floats, first_row: int, where: str) -> None:
    """Raise for the first row of block (m, d) that is not finite or too long; first_row is its number."""
    finite = np.isfinite(block)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise InputError(
            f"{where.format(row=first_row + row)} has {block[row, column]} in column {column}; "
            "expected finite float32 numbers: fix or remove it."
        )
    squared = np.einsum("ij,ij->i", block, block, dtype=np.float64)
    too_long = np.flatnonzero(squared > MAX_SQUARED_NORM)
    if len(too_long):
        row = int(too_long[0])
        raise InputError(
            f"{where.format(row=first_row + row)} has length {math.sqrt(squared[row]):.3g}, and dot products "
            f"could overflow float32; expected at most {math.sqrt(MAX_SQUARED_NORM):.0e}: rescale it."
        )


def check_matrix(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return the array (n, d) as native, aligned float32 or float16, copied only where it is not.

    Other floats and integers become float32, with a note on stderr.  uint16 is refused: it may be bfloat16.
    """
    if array.dtype.kind not in "fiu" or array.dtype == np.uint16:
        advice = "numpy.asarray(numbers, 'float32')"
        if array.dtype == np.uint16:
            advice = "(numbers.astype('uint32') << 16).view('float32') if they are bfloat16, else with " + advice
        raise InputError(f"{what} are {array.dtype.name}; softindex keeps float32 or float16: convert with {advice}.")
    check_matrix_shape(array.shape, what)
    native = FLOAT32 if array.dtype.itemsize == FLOAT32.itemsize else FLOAT16
    if array.dtype.kind == "f" and array.dtype.newbyteorder("=") == native:
        return array if array.dtype.isnative and array.flags.aligned else np.array(array, native)
    note_rounded(what, array.dtype.name)
    return as_float32(array)


def check_matrix_shape(shape: tuple[int, ...], what: str) -> None:
    """Refuse a shape that is not (n, d) with n >= 1 and d >= 1."""
    if len(shape) != 2:
        raise InputError(f"{what} have shape {shape}; expected two axes (n, d), one row per item.")
    if 0 in shape:
        raise InputError(f"{what} have shape {shape}; expected at least one row and one dimension.")


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Return values as an array, without a copy where possible; a memmap stays a memmap."""
    if isinstance(values, np.memmap):
        return values
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what} are a masked array; pass {what}.filled(value) or drop the masked rows.")
    try:
        # torch is recognised by name: importing it would take seconds, and most callers do not use it.
        if any(str(base.__module__).partition(".")[0] == "torch" for base in type(values).__mro__):
            tensor = values.detach().cpu()
            return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise InputError(f"{what} cannot be turned into an array ({error}); pass a NumPy array.") from error


def check_ids(ids: Any, n: int) -> Ids | None:
    """Return n distinct ids as a new (n,) array of int64 or str, or None where none are given."""
    if ids is None:
        return None
    values = list(ids) if isinstance(ids, (list, tuple, range)) else as_array(ids, "ids")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InputError(f"ids have shape {values.shape}; expected a list or an array of one axis.")
    if len(values) != n:
        raise InputError(f"{len(values)} ids were given for {n} vectors; pass one id per row.")
    table = _id_table(values)
    duplicate = _find_duplicate(table)
    if duplicate is not None:
        raise InputError(f"id {duplicate!r} is given more than once; ids must be distinct.")
    return table


def _id_table(values: NDArray[Any] | list[Any]) -> Ids:
    """Return ids as an array of one type.  Always a copy: the index must not change when the caller's array does."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iu":
            if values.dtype == np.uint64 and len(values) and values.max() > MAX_COUNT:
                raise InputError(f"id {values.max()} is too large; an integer id must fit int64.")
            return np.array(values, np.int64)
        if values.dtype.kind == "U":
            return np.array(values, values.dtype.newbyteorder("="))
        if values.dtype.kind not in "OT":
            raise InputError(f"ids are {values.dtype}; expected integers or strings.")
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    kinds = set(map(type, listed))
    if all(issubclass(kind, str) for kind in kinds):
        return _string_table(listed)
    if any(not issubclass(kind, (int, np.integer)) or kind is bool for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"ids are of type {names}; expected all integers or all strings.")
    try:
        return np.array(listed, np.int64)
    except OverflowError as error:
        raise InputError("an id is too large; an integer id must fit int64.") from error


def _string_table(words: list[str]) -> NDArray[np.str_]:
    longest = max(map(len, words), default=0)
    if 4 * longest * len(words) > MAX_ID_TABLE_BYTES:
        raise InputError(
            f"the longest of {len(words)} ids has {longest} characters, and all are kept at that width; "
            "pass shorter ids or integers."
        )
    # NumPy pads with NUL and drops it at the end, which would change the id.
    for word in words:
        if word[-1:] == "\0":
            raise InputError(f"id {word!r} ends in a NUL character; strip it.")
    return np.array(words, dtype=np.str_)


def _find_duplicate(table: NDArray[Any]) -> int | str | None:
    if table.dtype.kind == "U":
        words: list[str] = table.tolist()
        # The set answers for the entire table at once; only a bad table is walked.
        if len(set(words)) == len(words):
            return None
        seen: set[str] = set()
        for word in words:
            if word in seen:
                return word
            seen.add(word)
    # Row numbers and database keys mostly come in order, and checking that is much quicker than sorting.
    if (table[1:] > table[:-1]).all():
        return None
    ordered = np.sort(table)
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[repeated[0]]) if len(repeated) else None


def check_per_item(values: Any, n: int, *, name: str, of: str = "item") -> Floats | None:
    """Return one number per item as a new (n,) float32 array, or None where none are given.

    name, of: what the caller calls the numbers, and what they belong to.
    """
    if values is None:
        return None
    array = as_array(values, name)
    if array.dtype.kind != "f":
        raise InputError(f"{name} is {array.dtype}; expected floats: for counts pass numpy.log(counts).")
    if array.shape != (n,):
        raise InputError(f"{name} has shape {array.shape}; expected ({n},), one number per {of}.")
    with np.errstate(over="ignore"):
        checked = np.array(array, np.float32)
    wrong = np.flatnonzero(~(np.abs(checked) <= MAX_LOG_BIAS))
    if len(wrong):
        row = int(wrong[0])
        advice = f"leave the {of} out instead" if array[row] == -np.inf else "fix or rescale it"
        raise InputError(
            f"{name} of {of} {row} is {array[row]}; expected a number from {-MAX_LOG_BIAS:.0e} to "
            f"{MAX_LOG_BIAS:.0e}: {advice}."
        )
    return checked


def check_temperature(temperature: Any) -> float:
    """Return the temperature as a float; it must be a real number from 1e-30 to 1e30."""
    low, high = TEMPERATURES
    if _is_number(temperature):
        try:
            value = float(temperature)
        except OverflowError:
            value = math.inf
        if low <= value <= high:
            return value
    raise InputError(f"temperature is {show(temperature)}; expected one number from {low} to {high}.")


def check_temperatures(temperatures: Any) -> list[float]:
    """Return one temperature or several as a list without repetitions."""
    several = isinstance(temperatures, Iterable) and not isinstance(temperatures, str)
    given = list(temperatures) if several else [temperatures]
    if not given:
        raise InputError("there are no temperatures; pass at least one, such as 0.1.")
    return list(dict.fromkeys(check_temperature(temperature) for temperature in given))


def check_share(value: Any, name: str) -> float:
    """Return a share of the total as a float above 0 and up to 1; name: what the caller calls it."""
    if _is_number(value) and 0 < value <= 1:
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected one number above 0 and up to 1.")


def check_fraction(value: Any, name: str, example: float) -> float:
    """Return a number strictly between 0 and 1 as a float; example: a usual value, for the message."""
    if isinstance(value, (float, np.floating)) and 0.0 < value < 1.0:
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number between 0 and 1, such as {example}.")


def check_confidence(confidence: Any) -> float:
    """Return the confidence as a float between 0 and 1."""
    return check_fraction(confidence, "confidence", 0.95)


def check_positive(value: Any, name: str, example: float) -> float:
    """Return a number above 0 as a float; example: a usual value, for the message."""
    # An int of hundreds of digits does not fit a float.
    if _is_number(value) and 0.0 < value < 1e300:
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number above 0, such as {example}.")


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices; name: what the caller calls it."""
    if isinstance(value, str) and value in choices:
        return value
    raise InputError(f"{name} is {show(value)}; expected one of {', '.join(choices)}.")


def check_flag(value: Any, name: str) -> bool:
    """Return the value as a bool; name: what the caller calls it."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InputError(f"{name} is {show(value)}; expected True or False.")


def check_count(value: Any, name: str, most: int = MAX_COUNT, *, least: int = 1) -> int:
    """Return a count as an int from least to most; name: what the caller calls it."""
    return _check_integer(value, name, least, most)


def check_room(b: int, m: int) -> None:
    """Refuse m results for each of b queries where they cannot fit into memory."""
    # Linux grants more memory than there is, and ends the process when it is used.
    if b * m > MOST_RESULTS:
        raise too_many(b, m)
    try:
        # Memory that is reserved and never touched costs nothing.
        np.empty((b, m))
    except (MemoryError, ValueError) as error:
        raise too_many(b, m) from error


def too_many(b: int, m: int) -> InputError:
    """The error for m results for each of b queries that do not fit into memory."""
    return InputError(f"{m} results for each of {b} queries do not fit into memory; ask for fewer.")


def check_seed(seed: Any) -> int:
    """Return the seed as an int in [0, 2**64); None draws a fresh one below 2**53, which JavaScript can repeat."""
    return _fresh.getrandbits(53) if seed is None else _check_integer(seed, "seed", 0, 2**64 - 1)


def check_threads(threads: Any) -> int:
    """Return the number of threads; None means every CPU this process may use."""
    if threads is not None:
        return _check_integer(threads, "threads", 1, MAX_THREADS)
    # A container or taskset may allow fewer CPUs than the machine has.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, MAX_THREADS)


def _is_number(value: Any) -> bool:
    return isinstance(value, (float, int, np.floating, np.integer)) and not isinstance(value, bool)


def _check_integer(value: Any, name: str, low: int, high: int) -> int:
    # Nearly always a plain int, and every single query passes here.
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and low <= int(value) <= high:
        return int(value)
    # Naming the largest int64 would help nobody.
    expected = f"of at least {low}" if high == MAX_COUNT else f"from {low} to {high}"
    raise InputError(f"{name} is {show(value)}; expected one integer {expected}.")
