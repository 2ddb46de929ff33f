"""The audit of GloVe: its figures, one of them in the README, and the time and memory that an audit takes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.tables import Table

QUERIES = 300
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
AUDIT = """
import json, pathlib, resource, sys, time
import numpy as np
import softindex
from softindex.evaluate.panels import files
index, queries = softindex.load(sys.argv[1]), np.load(sys.argv[3])
begin = time.perf_counter()
found = index.audit(queries)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for name, text in files(found).items():
    (pathlib.Path(sys.argv[2]) / f"{name}.svg").write_text(text)
cells = [row.cells() for row in found.rows]
own = [row.cells() for row in index.audit(methods=["exact", "certified", "sd-2ls"]).rows]
print(json.dumps({"seconds": seconds, "peak": peak, "cells": cells, "own": own, **found.to_dict()}))
"""


def run(options):
    """Audit an index with codes, in a separate process, to measure its memory."""
    words = glove()
    if words is None:
        return []
    held = np.random.default_rng(4).choice(len(words), size=QUERIES, replace=False)
    items = np.delete(words, held, axis=0)
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "index"
        softindex.build(items, codes=True).save(path)
        np.save(Path(folder) / "queries.npy", words[held])
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        arguments = [sys.executable, "-c", AUDIT, str(path), str(FIGURES), f"{folder}/queries.npy"]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    title = (
        f"GloVe, {len(items):,} x 100, {QUERIES} held-out words as queries; speed-up over our own exact; recommended: "
        f"{found['recommendation']} The audit took {found['seconds']:.0f} s and {found['peak'] / size:.1f} times the "
        f"memory of the index"
    )
    tables = {
        title: found["cells"],
        "Without queries of your own: items, none of which is drawn for itself": found["own"],
    }
    return [Table(name, list(rows[0]), [list(row.values()) for row in rows]) for name, rows in tables.items()]
