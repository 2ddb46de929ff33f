"""The audit of GloVe: its figures, one of them in the README, and the time and memory that an audit takes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import softindex
from benchmarks.data import glove
from benchmarks.tables import Table

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
AUDIT = """
import json, pathlib, resource, sys, time
import softindex
from softindex.evaluate.panels import files
index = softindex.load(sys.argv[1])
begin = time.perf_counter()
found = index.audit()
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for name, text in files(found).items():
    (pathlib.Path(sys.argv[2]) / f"{name}.svg").write_text(text)
cells = [row.cells() for row in found.rows]
print(json.dumps({"seconds": seconds, "peak": peak, "cells": cells, **found.to_dict()}))
"""


def run(options):
    """Audit an index with codes, in a separate process, to measure its memory."""
    words = glove()
    if words is None:
        return []
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "index"
        softindex.build(words, codes=True).save(path)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        arguments = [sys.executable, "-c", AUDIT, str(path), str(FIGURES)]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    title = (
        f"GloVe, {len(words):,} x 100, {found['parameters']['queries']} of the words as queries; speed-up over our own "
        f"exact; recommended: {found['recommendation']} The audit took {found['seconds']:.0f} s and "
        f"{found['peak'] / size:.1f} times the memory of the index"
    )
    return [Table(title, list(found["cells"][0]), [list(row.values()) for row in found["cells"]])]
