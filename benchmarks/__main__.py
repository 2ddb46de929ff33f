"""Runs the benchmarks: `python -m benchmarks [draws] [threads] [build] [large]`, all but large by default."""

import argparse
import os

# One thread for the peers' BLAS, set before NumPy loads it: one-thread rows compare one thread with one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks import build, draws, large, report

SECTIONS = {"draws": draws.run, "threads": draws.run_threads, "build": build.run, "large": large.run}


def main() -> None:
    """Run the named sections and write their tables into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="draws, threads, build, large")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the synthetic set")
    parser.add_argument("--large-items", type=int, default=20_000_000, help="items of the large set")
    parser.add_argument("--folder", default=None, help="where large files may go (a temporary folder otherwise)")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {min(unknown)}; take {', '.join(SECTIONS)}")
    for name in options.sections or ["draws", "threads", "build"]:
        report.write(name, SECTIONS[name](options))


if __name__ == "__main__":
    main()
