"""Benchmarks: `python -m benchmarks [SECTION ...]`; all but growth and large, which take long, when none is named."""

import argparse
import importlib
import os
import subprocess
import sys

SECTIONS = {
    "draws": "draws:run",
    "fidelity": "fidelity:run",
    "defaults": "defaults:run",
    "threads": "draws:run_threads",
    "build": "build:run",
    "adaptive": "adaptive:run",
    "training": "training:run",
    "mol": "mol:run",
    "audit": "audit:run",
    "growth": "growth:run",
    "large": "large:run",
}
ONE_THREAD = ("adaptive", "draws", "fidelity", "defaults", "threads")
"""Here the peers' BLAS must run on one thread as ours does; elsewhere everybody may use all cores."""


def main() -> None:
    """Run each named section in a process of its own and write its tables into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the synthetic set")
    parser.add_argument("--large-items", type=int, default=20_000_000, help="items of the large set")
    parser.add_argument("--folder", default=None, help="where large files may go (a temporary folder otherwise)")
    parser.add_argument("--vectors", nargs="*", default=[], help="further .npy files for fidelity")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {min(unknown)}; take {', '.join(SECTIONS)}")
    if len(options.sections) != 1:
        rest = [word for word in sys.argv[1:] if word not in options.sections]
        for section in options.sections or ["audit", "draws", "fidelity", "defaults", "threads", "build"]:
            subprocess.run([sys.executable, "-m", "benchmarks", section, *rest], check=True)
        return
    section = options.sections[0]
    if section in ONE_THREAD:
        # Before NumPy is loaded, as OpenBLAS reads it only then.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    module, function = SECTIONS[section].split(":")
    tables = getattr(importlib.import_module(f"benchmarks.{module}"), function)(options)
    importlib.import_module("benchmarks.report").write(section, tables)


if __name__ == "__main__":
    main()
