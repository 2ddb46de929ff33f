"""The only way into the compiled core: its names, and the choice of kernels for this CPU."""

from __future__ import annotations

import os

from softindex.kernels import _native

__all__ = [
    "LANES",
    "BestResults",
    "DrawResults",
    "Engine",
    "Guard",
    "IntegerTable",
    "Law",
    "NativeMixture",
    "NativePac",
    "NativeRestriction",
    "PacAnswers",
    "PacExclusions",
    "PacGoal",
    "Request",
    "StringTable",
    "block_sums",
    "dot_error",
    "double_dots",
    "hash_bytes",
    "hash_strings",
    "padded",
    "preferred_target",
    "read_integers",
    "screen",
    "screen_nibbles",
    "strings_at",
    "targets",
    "widen",
]

Engine = _native.Engine
Guard = _native.Guard
BestResults = _native.BestResults
DrawResults = _native.DrawResults
IntegerTable = _native.IntegerTable
Law = _native.Law
NativeMixture = _native.Mixture
NativePac = _native.Pac
NativeRestriction = _native.Restriction
PacAnswers = _native.PacAnswers
PacExclusions = _native.PacExclusions
PacGoal = _native.PacGoal
Request = _native.Request
StringTable = _native.StringTable
LANES = _native.LANES
block_sums = _native.block_sums
double_dots = _native.double_dots
hash_bytes = _native.hash_bytes
hash_strings = _native.hash_strings
read_integers = _native.read_integers
strings_at = _native.strings_at
screen = _native.screen
screen_nibbles = _native.screen_nibbles
dot_error = _native.dot_error
targets = _native.targets
widen = _native.widen


def padded(d: int) -> int:
    """Return d rounded up to full lanes: the length to which the kernels want a query padded."""
    return -(-d // LANES) * LANES


def preferred_target() -> str:
    """Name of the kernels to use: the best this CPU runs, or the one SOFTINDEX_TARGET names (for tests)."""
    wanted = os.environ.get("SOFTINDEX_TARGET", "")
    if wanted and wanted not in _native.targets():
        raise ImportError(
            f"SOFTINDEX_TARGET is {wanted!r}, but this CPU runs {', '.join(_native.targets())}; unset it."
        )
    return wanted
