"""The machine and the software that a measurement was made with."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from softindex.kernels import targets

__all__ = ["machine"]


def machine() -> str:
    """The processor, its cores and the software versions, in one line."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = found.group(1).strip() if found else model
    import numpy

    others = ""
    for name, package in (("faiss", "faiss-cpu"), ("torch", "torch")):
        with contextlib.suppress(PackageNotFoundError):
            others += f", {name} {version(package)}"
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, kernels {targets()[0]}, "
        f"Python {platform.python_version()}, NumPy {numpy.__version__}{others}"
    )
