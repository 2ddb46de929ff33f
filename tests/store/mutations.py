"""Saved directories of every kind that lie: arrays and parameters are changed, and the checksums are right again.

`python tests/store/mutations.py index 3000` loads and uses that many of them (kinds: index, mixture-index,
adaptive-softmax), and reports each that crashes, hangs for ten seconds, raises anything but a softindex error, or
answers with NaN.  `--from 17` starts at another seed; one seed makes one file.
"""

import argparse
import faulthandler
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "mol"), str(TESTS / "saved")]

import make  # noqa: E402
from made_similarities import similarity  # noqa: E402

import softindex  # noqa: E402
from softindex import fields, mol  # noqa: E402
from softindex.records import Stored  # noqa: E402
from softindex.store import load as load_stored  # noqa: E402
from softindex.store import save as save_stored  # noqa: E402

SECONDS = 10
"""A call that takes longer hangs."""


def make_bases(folder):
    """Directories to start from, of every kind and with every group of arrays: {kind: [stored]}."""
    bias = make.inputs()[2]
    made = [make.make_index(settings) for settings in make.SETTINGS.values()]
    for kind, users in (("mixture", 4), ("mixture", None), ("logits", None), ("largest", None)):
        given = similarity(kind, 40, users=users)
        ids = {None: None, 4: [f"item {row}" for row in range(40)]}[users]
        made.append(mol.build(given, np.arange(40), ids=ids))
    weights = np.random.default_rng(2).standard_normal((40, 300)).astype(np.float32)
    brain = (weights.view(np.uint32) >> 16).astype(np.uint16)
    layers = [softindex.AdaptiveSoftmax(rows, bias[:40]) for rows in (weights, weights.astype(np.float16), brain)]
    made += [make.make_layer(), *layers, softindex.AdaptiveSoftmax(weights[:, :20], log_bias=bias[:40])]
    bases = {}
    for number, product in enumerate(made):
        product.save(folder / str(number))
        stored = load_stored(folder / str(number), mmap=False)
        bases.setdefault(stored.kind, []).append(stored)
    return bases


FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1.0, 1e-40, 1e-30, 1e6, 1e15, 1e30, 3e38, -3e38, 0.5, 2.0]
INTEGERS = [0, 1, -1, 2, 7, 39, 40, 99, 100, 127, -128, 10**6, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1]
PARAMETERS = [None, True, False, 0, 1, -1, 2, 3, 40, 10**6, 2**40, 2**63, 10**30, 0.0, 0.1, -1.0, 1e-300, 1e300, 1e15]
PARAMETERS += ["", "rows", "integers", "strings", "none", "full", "rank", [], {}, [1], {"a": 1}, "x" * 500]


def some(rng, values):
    return values[int(rng.integers(len(values)))]


def change_values(rng, array):
    """The same shape and type with some other values."""
    result = array.copy()
    flat = result.reshape(-1)
    if flat.size == 0:
        return result
    action = int(rng.integers(9))
    places = rng.integers(flat.size, size=some(rng, [1, 1, 3, flat.size]))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if action <= 2:
            values = FLOATS if flat.dtype.kind == "f" else INTEGERS
            flat[places] = np.array(some(rng, values)).astype(flat.dtype)
        elif action == 3:
            flat[:] = np.array(some(rng, FLOATS if flat.dtype.kind == "f" else INTEGERS)).astype(flat.dtype)
        elif action == 4:
            flat[:] = flat[rng.permutation(flat.size)]
        elif action == 5:
            flat[:] = flat[::-1].copy()
        elif action == 6:
            flat[:] = (flat * np.float64(some(rng, [-1, 0.5, 2, 1000, 1e20]))).astype(flat.dtype)
        elif action == 7:
            flat[places] = flat[rng.integers(flat.size, size=len(places))]
        else:
            raw = flat.view(np.uint8)
            raw[rng.integers(raw.size, size=len(places))] ^= np.uint8(1 << int(rng.integers(8)))
    return result


def change_layout(rng, array):
    """Another shape or type."""
    action = int(rng.integers(5))
    if action == 0 and array.ndim and len(array):
        return array[: int(rng.integers(len(array)))].copy()
    if action == 1 and array.ndim:
        return np.concatenate([array, array[:1]])
    if action == 2:
        return array.reshape(-1)
    if action == 3:
        return array.reshape((1, *array.shape))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return array.astype(some(rng, ["int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]))


def mutate(stored, seed):
    """The directory after one to three changes."""
    rng = np.random.default_rng(seed)
    parameters, arrays, version = dict(stored.parameters), dict(stored.arrays), stored.version
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        name, action = some(rng, sorted(arrays)), int(rng.integers(20))
        if action <= 11:
            arrays[name] = change_values(rng, arrays[name])
        elif action <= 13:
            arrays[name] = change_layout(rng, arrays[name])
        elif action == 14:
            other = some(rng, sorted(arrays))
            arrays[name], arrays[other] = arrays[other], arrays[name]
        elif action == 15:
            del arrays[name]
        elif action == 16:
            version = some(rng, [1, 2])
        elif action == 17:
            parameters.pop(some(rng, sorted(parameters)) if parameters else "", None)
        elif parameters:
            parameters[some(rng, sorted(parameters))] = some(rng, PARAMETERS)
    return Stored(stored.kind, parameters, arrays, version)


def calls(product):
    """Everything that is asked of a product, as functions that return the numbers which must not be NaN."""
    rng = np.random.default_rng(0)
    if isinstance(product, softindex.Index):
        queries, ids = rng.standard_normal((2, product.dim)).astype(np.float32), product.ids[:3]
        yield lambda: [product.top_k(queries, 3).scores, product.top_k(queries, 2, probes=1).scores]
        for method in ("exact", "2ls", "s-2ls", "sd-2ls", "certified", "sd-hierarchical"):
            for options in ({}, {"exclude": ids}, {"top_p": 0.5}, {"replace": False}):
                yield lambda m=method, o=options: [product.sample(queries, 3, temperature=0.7, method=m, **o).log_prob]
            yield lambda m=method: [product.log_partition(queries, temperature=0.7, method=m).value]
        yield lambda: [product.sample(queries, 3, temperature=0.7, method="top-k", k=4).log_prob]
        yield lambda: [product.log_prob(queries, ids, temperature=0.7), product.items.vectors]
        yield lambda: [product.sample(queries, temperature=0.1).error]
    elif isinstance(product, softindex.AdaptiveSoftmax):
        queries = rng.standard_normal((2, product.dim)).astype(np.float32)
        for guarantee in ("exact", "deterministic", "calibrated", "pac"):
            yield lambda g=guarantee: [product.top_k(queries, 3, temperature=0.7, guarantee=g).log_prob]
            yield lambda g=guarantee: [product.log_partition(queries, temperature=0.7, guarantee=g).value]
        yield lambda: [product.sample(queries, 3, temperature=0.7, seed=1).log_prob]
        yield lambda: [product.nucleus(queries, 0.5, temperature=0.7).log_prob]
        yield lambda: [product.log_prob(queries, [0, 1], temperature=0.7, exclude=[2])]
    else:
        spec, ids = product.spec, product.ids[:2].tolist()
        if spec.query_components > 100:
            # Nothing in the file says that a query has fewer, and a caller who passes so many waits for them.
            return
        shape = (
            (2, spec.query_components, spec.component_dim) if spec.query is None else (2, spec.query.hidden.shape[1])
        )
        queries = rng.standard_normal(shape).astype(np.float32)
        if spec.query is None:
            queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
        users = {"users": [1, 2]} if spec.query is not None and spec.query.users is not None else {}
        for method in ("brute-force", "two-pass", "per-embedding", "average", "clusters", "combined", "auto"):
            yield lambda m=method: [product.top_k(queries, 3, method=m, **users).scores]
        yield lambda: [product.top_k(queries, 3, exclude=ids, gap=0.1, **users).scores]
        yield lambda: [product.rank(queries, ids, 1, **users).scores]
        yield lambda: [product.sample(queries, 2, temperature=1.0, seed=1, **users).scores]
        yield lambda: [product.sample(queries, 2, temperature=1.0, seed=1, method="candidates", **users).log_prob]
        yield lambda: [product.averages] + [product.remove(ids)] * 0
        yield lambda: [product.remove(ids)] * 0 + [product.top_k(queries, 3, **users).scores]


def use(path):
    """Load the directory and call everything; returns "refused", "used", or what was wrong."""
    try:
        product = softindex.load(path)
    except softindex.SoftindexError:
        return "refused"
    result = "used"
    try:
        listed = list(calls(product))
    except softindex.CorruptIndexError:
        return "refused when used"
    for call in listed:
        try:
            for numbers in call():
                if np.isnan(np.asarray(numbers)).any():
                    return "NaN"
        except softindex.CorruptIndexError:
            result = "refused when used"
        except softindex.SoftindexError:
            pass
    return result


def run(kind, seeds, *, large=False):
    """Use the file of every seed; returns {seed: what was wrong}.  large: as if no array were small enough to check."""
    fields.SMALL_BYTES = 0 if large else fields.SMALL_BYTES
    counts, wrong = {}, {}
    # In memory where possible: saving waits for the disk.
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        bases = make_bases(Path(folder))[kind]
        for seed in seeds:
            print("seed", seed, flush=True)  # noqa: T201
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                save_stored(Path(folder, "changed"), mutate(bases[seed % len(bases)], seed))
            except softindex.InputError:
                # A parameter or a name that no file can hold.
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    found = use(Path(folder, "changed"))
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            faulthandler.cancel_dump_traceback_later()
            if found not in ("refused", "used", "refused when used"):
                wrong[seed] = found
                print("wrong", seed, found, flush=True)  # noqa: T201
            counts[found] = counts.get(found, 0) + 1
    print("counts", counts, flush=True)  # noqa: T201
    return wrong


def watch(kind, first, count, *, large=False):
    """The same in another process, started again behind a file that crashes or hangs it: findings and counts."""
    findings, last = [], first + count
    while first < last:
        command = [
            sys.executable,
            __file__,
            kind,
            str(last - first),
            "--from",
            str(first),
            "--here",
            *["--large"] * large,
        ]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = child.stdout.splitlines()
        findings += [line for line in lines if line.startswith("wrong")]
        if child.returncode == 0:
            return findings, lines[-1]
        seeds = [int(line.split()[1]) for line in lines if line.startswith("seed")]
        if not seeds:
            raise RuntimeError(child.stderr)
        findings.append(f"wrong {seeds[-1]} crashed or hung: {child.stderr[-3000:]}")
        first = seeds[-1] + 1
    return findings, ""


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kind")
    options.add_argument("count", type=int)
    options.add_argument("--from", dest="first", type=int, default=0)
    options.add_argument("--here", action="store_true", help="in this process; a crash ends it")
    options.add_argument("--large", action="store_true", help="as if every array were too large to be checked at load")
    given = options.parse_args()
    if given.here:
        run(given.kind, range(given.first, given.first + given.count), large=given.large)
    else:
        found, counts = watch(given.kind, given.first, given.count, large=given.large)
        print("\n".join(found), counts, f"{len(found)} of {given.count} files were wrong", sep="\n")  # noqa: T201
        sys.exit(bool(found))
