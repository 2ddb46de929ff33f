"""Commands that make an index and look after it: build, info, verify."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import softindex
from softindex.cli.options import AsJson, IndexPath, Threads, app
from softindex.cli.printing import print_json, print_table
from softindex.errors import InputError
from softindex.progress import reporting
from softindex.store import read_manifest
from softindex.store import verify as verify_stored

__all__ = ["read_lines"]

LOADERS: dict[str, Callable[[Path], Any]] = {
    "index": softindex.load,
    "adaptive-softmax": softindex.AdaptiveSoftmax.load,
    "mol-catalogue": softindex.mol.load,
}
"""What opens a saved folder, by what it holds."""


@app.command()
def build(
    vectors: Annotated[
        str,
        typer.Argument(
            metavar="VECTORS",
            help="Item vectors: .npy .npz .safetensors .parquet .fvecs .bvecs .hdf5 .txt; path::name picks an array.",
        ),
    ],
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Directory to write.")],
    ids: Annotated[Path | None, typer.Option(help="Text file with one id a line; all integers, or strings.")] = None,
    log_bias: Annotated[Path | None, typer.Option(help=".npy file with one log bias per item.")] = None,
    clusters: Annotated[
        int | None, typer.Option(help="Square root of the items when left out (with --tree: 1024 items each).")
    ] = None,
    dispersion: Annotated[str, typer.Option(help="none, full, auto, or a rank.")] = "auto",
    codes: Annotated[bool, typer.Option("--codes", help="Also keep every item in eight bits a number.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Cluster by a binary tree, for the hierarchical methods.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the k-means.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index of the vectors and save it."""
    built = softindex.build(
        vectors,
        ids=None if ids is None else _read_ids(ids),
        log_bias=None if log_bias is None else _read_array(log_bias),
        clusters=clusters,
        dispersion=_dispersion(dispersion),
        codes=codes,
        tree=tree,
        seed=seed,
        threads=threads,
        progress=True,
    )
    built.save(index, progress=True)
    if as_json:
        print_json({"index": str(index), "items": len(built), "dim": built.dim, "clusters": built.clusters})
    else:
        typer.echo(f"{index}: {len(built)} items of {built.dim} dimensions in {built.clusters} clusters")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file of ids."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a text of ids ({error}); write one id a line.") from error


def _read_ids(path: Path) -> list[int] | list[str]:
    lines = read_lines(path)
    with contextlib.suppress(ValueError):
        numbers = [int(line) for line in lines]
        # 007 is a name, not a number: only what would be written the same way is taken for one.
        if all(str(number) == line for number, line in zip(numbers, lines, strict=True)):
            return numbers
    return lines


def _read_array(path: Path) -> NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as an array ({error}); save it with numpy.save.") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays; save one with numpy.save.")
    return loaded


def _dispersion(text: str) -> str | int:
    try:
        return int(text)
    except ValueError:
        return text


@app.command()
def info(index: IndexPath, as_json: AsJson = False) -> None:
    """Tell what a saved index, adaptive softmax or catalogue holds, without reading its data."""
    manifest = read_manifest(index)
    size = sum(blob.bytes for blob in manifest.blobs)
    facts = {"version": manifest.version, **manifest.parameters, "bytes": size}
    if as_json:
        print_json(facts)
    else:
        print_table(str(index), ("", "value"), facts.items())


@app.command()
def verify(index: IndexPath, as_json: AsJson = False) -> None:
    """Check every byte of a saved index, adaptive softmax or catalogue against its checksum."""
    with reporting(True) as report:
        checked = verify_stored(index, progress=None if report is None else partial(report, "checking"))
    LOADERS.get(checked.kind, softindex.load)(index)  # whole arrays must also fit together
    if as_json:
        blobs = [{"name": blob.name, "bytes": blob.bytes} for blob in checked.blobs]
        print_json({"index": str(index), "blobs": blobs})
    else:
        typer.echo(f"{index}: whole, {len(checked.blobs)} arrays checked")
