"""Benchmarks: `python -m benchmarks [SECTION ...]`, or `python -m benchmarks paper` with its own options.

Without a section, all run but paper and those that take long or need torch.
"""

import argparse
import importlib
import os
import subprocess
import sys

SECTIONS = {
    "draws": "draws:run",
    "fidelity": "fidelity:run",
    "stated": "stated:run",
    "defaults": "defaults:run",
    "many-draws": "draws:run_many",
    "threads": "draws:run_threads",
    "limits": "limits:run",
    "restricted": "restricted:run",
    "top-k": "top_k:run",
    "build": "build:run",
    "partition": "partition:run",
    "adaptive": "adaptive:run",
    "adaptive-gaps": "adaptive_gaps:run",
    "adaptive-worst": "adaptive_worst:run",
    "adaptive-figures": "adaptive_figures:run",
    "adaptive-speculative": "adaptive_speculative:run",
    "adaptive-tail": "adaptive_tail:run",
    "training": "training:run",
    "mol": "mol:run",
    "mol-torch": "mol_torch:run",
    "audit": "audit:run",
    "growth": "growth:run",
    "live": "live:run",
    "serve": "serve:run",
    "decisions": "decisions:run",
    "ray": "shards:run",
    "large": "large:run",
}
USUAL = (
    "audit",
    "draws",
    "limits",
    "many-draws",
    "fidelity",
    "stated",
    "defaults",
    "threads",
    "restricted",
    "build",
    "partition",
)
"""The sections that run when none is named."""
ONE_THREAD = (
    "adaptive",
    "adaptive-gaps",
    "adaptive-worst",
    "adaptive-figures",
    "adaptive-speculative",
    "adaptive-tail",
    "draws",
    "fidelity",
    "stated",
    "defaults",
    "many-draws",
    "threads",
    "limits",
    "restricted",
    "top-k",
    "live",
    "serve",
    "decisions",
)
"""Here BLAS must run on one thread, as our kernels do; in the other sections all may use every core."""


def main() -> None:
    """Run each named section in its own process and write its tables into docs/benchmarks.md."""
    if sys.argv[1:2] == ["paper"]:
        run_paper(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"paper (alone), {', '.join(SECTIONS)}")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the synthetic set")
    parser.add_argument("--large-items", type=int, default=20_000_000, help="items of the large set")
    parser.add_argument("--large-storages", nargs="*", default=["float32", "int8"], help="how to keep the large set")
    parser.add_argument("--folder", default=None, help="directory for large files (a temporary one when left out)")
    parser.add_argument("--vectors", nargs="*", default=[], help="further .npy files for fidelity")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {min(unknown)}; use one of {', '.join(SECTIONS)}, or paper alone")
    if len(options.sections) != 1:
        rest = [word for word in sys.argv[1:] if word not in options.sections]
        for section in options.sections or USUAL:
            subprocess.run([sys.executable, "-m", "benchmarks", section, *rest], check=True)
        return
    section = options.sections[0]
    if section in ONE_THREAD:
        # Before NumPy is loaded: OpenBLAS reads this only then.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    module, function = SECTIONS[section].split(":")
    tables = getattr(importlib.import_module(f"benchmarks.{module}"), function)(options)
    importlib.import_module("benchmarks.report").write(section, tables)


def run_paper(arguments: list[str]) -> None:
    """Measure the paper's tables; an error of ours becomes one sentence."""
    # Not at the top: this loads NumPy, and OpenBLAS reads its settings only then.
    from softindex.errors import SoftindexError

    try:
        importlib.import_module("benchmarks.paper").main(arguments)
    except SoftindexError as error:
        sys.exit(f"benchmarks: {error}")


if __name__ == "__main__":
    main()
