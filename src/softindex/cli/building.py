"""Commands that make an index and check it: build, info, verify."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import softindex
from softindex.cli.options import AsJson, IndexPath, Threads, app
from softindex.cli.printing import print_json, print_line, print_table
from softindex.cli.reading import read_array, read_ids
from softindex.fields import INDEX
from softindex.progress import reporting
from softindex.residuals import Storage
from softindex.store import check_path, read_manifest
from softindex.store import verify as verify_stored

__all__: list[str] = []

WORDS = {"n": "items", "d": "dim"}
"""Manifests of some kinds have short names for what users know by these."""


@app.command()
def build(
    vectors: Annotated[
        str,
        typer.Argument(
            metavar="VECTORS",
            help="Item vectors: .npy .npz .safetensors .parquet .fvecs .bvecs .hdf5 .csv .txt; path::name picks one.",
        ),
    ],
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Directory to write.")],
    ids: Annotated[
        Path | None, typer.Option(help="Text file with one id per line: all integers, or all strings.")
    ] = None,
    bias: Annotated[
        Path | None, typer.Option(help=".npy file with one bias per item, divided by the temperature.")
    ] = None,
    log_bias: Annotated[Path | None, typer.Option(help=".npy file with one log bias per item, not divided.")] = None,
    clusters: Annotated[
        int | None, typer.Option(help="Number of clusters; sqrt(items) when left out (with --tree: see --leaf-items).")
    ] = None,
    dispersion: Annotated[
        str, typer.Option(help="What to keep of the spread in clusters: none, full (covariances), a rank, or auto.")
    ] = "auto",
    codes: Annotated[
        bool, typer.Option("--codes", help="Also keep every item in eight bits per number, for faster certified draws.")
    ] = False,
    sketch: Annotated[
        bool | None, typer.Option(help="Also keep them in four bits, for a fast top-k; the default with float32.")
    ] = None,
    storage: Annotated[str, typer.Option(help="float32, or int16 or int8: rounded, for less memory.")] = "float32",
    tree: Annotated[bool, typer.Option("--tree", help="Cluster by a binary tree: hierarchical methods.")] = False,
    leaf_items: Annotated[
        int | None, typer.Option(help="With --tree: the most items in a cluster; 1024 when left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the clustering.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index of the vectors and save it."""
    check_path(index, INDEX.kind)
    built = softindex.build(
        vectors,
        ids=None if ids is None else read_ids(ids),
        bias=None if bias is None else read_array(bias),
        log_bias=None if log_bias is None else read_array(log_bias),
        clusters=clusters,
        dispersion=_parse_dispersion(dispersion),
        codes=codes,
        sketch=sketch,
        storage=cast(Storage, storage),
        tree=tree,
        leaf_items=leaf_items,
        seed=seed,
        threads=threads,
        progress=True,
    )
    built.save(index, progress=True)
    if as_json:
        print_json({"index": str(index), "items": len(built), "dim": built.dim, "clusters": built.clusters})
    else:
        _print_built(index, built)


def _print_built(index: Path, built: softindex.Index) -> None:
    print_line(f"{index}: {len(built)} items of {built.dim} dimensions in {built.clusters} clusters")
    if (lost := built.parameters.get("rounding")) is not None:
        print_line(
            f"rounded to {built.parameters['storage']}: {lost['relative']:.2g} of their length away, at most "
            f"{lost['largest']:.2g}"
        )


def _parse_dispersion(text: str) -> str | int:
    try:
        return int(text)
    except ValueError:
        return text


@app.command()
def info(index: IndexPath, as_json: AsJson = False) -> None:
    """Show what a saved index of any kind holds, without reading its data."""
    manifest = read_manifest(index)
    known = {WORDS.get(name, name): value for name, value in manifest.parameters.items()}
    first: dict[str, Any] = {name: known.pop(name) for name in ("items", "dim") if name in known}
    size = sum(blob.bytes for blob in manifest.blobs)
    facts = {"kind": manifest.kind, "version": manifest.version, **first, **known, "bytes": size}
    if as_json:
        print_json(facts)
    else:
        print_table(str(index), ("name", "value"), ((name, _written(value)) for name, value in facts.items()))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


@app.command()
def verify(index: IndexPath, as_json: AsJson = False) -> None:
    """Check every byte of a saved index of any kind against its checksum."""
    with reporting(True) as report:
        checked = verify_stored(index, progress=None if report is None else partial(report, "checking"))
    # Arrays with valid checksums must also fit together.
    softindex.load(index)
    if as_json:
        blobs = [{"name": blob.name, "bytes": blob.bytes} for blob in checked.blobs]
        print_json({"index": str(index), "kind": checked.kind, "blobs": blobs})
    else:
        print_line(f"{index} is intact: {len(checked.blobs)} arrays checked")
