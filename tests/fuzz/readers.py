"""Fuzzes what softindex reads: `python tests/fuzz/readers.py FORMAT [CORPUS ...] [libFuzzer options]`.

FORMAT is one of the formats of vectors, or `manifest` for the manifest of a saved index.  An input is an error if it
raises anything but a softindex error, takes ten seconds, or needs memory out of proportion.  `make fuzz` runs every
format for a minute, from the files in tests/fuzz/corpus; `--make-corpus` writes these.
"""

import contextlib
import resource
import sys
import tempfile
import types
from pathlib import Path

import atheris
import numpy as np

import softindex
from softindex.readers import NAMED, SINGLE, read_file

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 6 << 30
FORMATS = [suffix[1:] for suffix in (NAMED | SINGLE) if suffix not in (".h5", ".vec", ".vec.gz")]


def read_vectors(suffix, folder):
    """A function that reads its bytes as a file of vectors."""
    path = folder / f"vectors.{suffix}"

    def one(data):
        path.write_bytes(data)
        try:
            loaded = read_file(str(path), want_ids=True, want_queries=True)
            # What is mapped is read here at the latest.
            np.asarray(loaded.vectors[:100]).sum(dtype=np.float64)
        except softindex.SoftindexError:
            pass

    return one


def read_manifest(folder):
    """A function that reads its bytes as the manifest of an index whose other files are right."""
    path = folder / "index"
    softindex.build(np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32), clusters=4).save(path)

    def one(data):
        (path / "manifest.json").write_bytes(data)
        with contextlib.suppress(softindex.SoftindexError):
            softindex.load(path)

    return one


def make_corpus():
    """Write one or two small valid files of every format."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    for name in [*FORMATS, "manifest"]:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
    vectors = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    np.save(CORPUS / "npy" / "plain", vectors)
    np.savez(CORPUS / "npz" / "plain", vectors=vectors, ids=np.array(["a", "b", "c"]))
    save_file({"vectors": vectors}, str(CORPUS / "safetensors" / "plain"))
    table = pa.table({"id": ["a", "b", "c"], "vector": list(vectors)})
    pq.write_table(table, CORPUS / "parquet" / "plain")
    with h5py.File(CORPUS / "hdf5" / "plain", "w") as file:
        file["vectors"] = vectors
    heads = np.full((3, 1), 2, np.int32)
    (CORPUS / "fvecs" / "plain").write_bytes(np.hstack([heads, vectors.view(np.int32)]).tobytes())
    (CORPUS / "bvecs" / "plain").write_bytes(b"\x02\x00\x00\x00\x01\x02" * 3)
    text = "".join(f"word{i} {a:.3f} {b:.3f}\n" for i, (a, b) in enumerate(vectors))
    (CORPUS / "txt" / "plain").write_text(text)
    (CORPUS / "csv" / "plain").write_text("id,x,y\n" + text.replace(" ", ","))
    (CORPUS / "csv" / "numbers").write_text("1,2\n3,4e-3\n")
    (CORPUS / "txt" / "headed").write_text("3 2\n" + text)
    import gzip

    (CORPUS / "txt.gz" / "plain").write_bytes(gzip.compress(text.encode(), mtime=0))
    with tempfile.TemporaryDirectory() as folder:
        read_manifest(Path(folder))
        manifest = (Path(folder) / "index" / "manifest.json").read_bytes()
        (CORPUS / "manifest" / "plain").write_bytes(manifest)


def main():
    """Fuzz one format, or write the corpus."""
    if sys.argv[1:] == ["--make-corpus"]:
        make_corpus()
        return
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in [*FORMATS, "manifest"]:
        sys.exit(f"there is no format {name!r}; use one of {', '.join(FORMATS)}, manifest")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        one = read_manifest(Path(folder)) if name == "manifest" else read_vectors(name, Path(folder))
        # The loader of an editable install hides what it imports from atheris: functions are instrumented one by one.
        for module in [module for name, module in sys.modules.items() if name.startswith(("softindex.", "numpy.lib"))]:
            for _key, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                    atheris.instrument_func(value)
        atheris.Setup([sys.argv[0], "-timeout=10", f"-rss_limit_mb={MEMORY >> 20}", *sys.argv[1:]], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
