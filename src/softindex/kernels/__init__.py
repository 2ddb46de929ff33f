"""The one door to the compiled core: picks the kernels for this CPU and hands out engines."""

from __future__ import annotations

import os

from softindex.kernels import _native

__all__ = ["Engine", "NativeLaw", "NativeRestriction", "hash_strings", "preferred_target", "rounding", "targets"]

Engine = _native.Engine
NativeLaw = _native.Law
NativeRestriction = _native.Restriction
hash_strings = _native.hash_strings
rounding = _native.rounding
targets = _native.targets


def preferred_target() -> str:
    """Name of the kernels to use: the best this CPU runs, or the one SOFTINDEX_TARGET names (for tests)."""
    wanted = os.environ.get("SOFTINDEX_TARGET", "")
    if wanted and wanted not in _native.targets():
        raise ImportError(
            f"SOFTINDEX_TARGET is {wanted!r}, but this CPU runs {', '.join(_native.targets())}; unset it."
        )
    return wanted
