"""What a directory of shards holds: one JSON file, replaced in one step when a build is complete."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softindex.errors import CorruptIndexError, NotAnIndexError, show
from softindex.sharded import Description, describe

__all__ = ["NAME", "Manifest", "Shard", "check_shards", "name_version", "read_manifest", "write_json"]

NAME = "shards.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a build."""

    folder: str
    """Of its index, relative to the directory of the manifest."""
    items: int
    version: str
    """Names what was saved: a hash of the manifest of the index, which has the checksums of its files."""
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete build: all shards of one version."""

    build: str
    """Names the build: the same files and options give the same name."""
    shards: tuple[Shard, ...]

    def describe(self) -> Description:
        """What a coordinator must know."""
        return describe([(shard.items, shard.parameters) for shard in self.shards])


def name_version(folder: Path) -> str:
    """The version of a saved index."""
    return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:16]


def write_json(path: Path, content: Any) -> None:
    """Write a file so that a kill at any moment leaves the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Make this build the one that is opened."""
    write_json(path / NAME, {"format": FORMAT, **asdict(manifest)})


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The complete build at this path."""
    file = Path(path) / NAME
    if not file.is_file():
        raise NotAnIndexError(f"{os.fspath(path)} holds no shards; make them with softindex.ray.build.")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.pop("format") != FORMAT:
            raise CorruptIndexError(f"{file} was written by another version of softindex; build the shards again.")
        shards = tuple(Shard(**shard) for shard in found["shards"])
        if not shards or any(type(shard.items) is not int or shard.items < 1 for shard in shards):
            raise ValueError("a shard holds no items")
        for shard in shards:
            folder = Path(shard.folder)
            if folder.is_absolute() or ".." in folder.parts:
                raise ValueError(f"the folder {show(shard.folder)} is elsewhere")
        return Manifest(found["build"], shards)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptIndexError(f"{file} is damaged ({error}); build the shards again.") from error


def check_shards(path: Path, manifest: Manifest) -> None:
    """Refuse a build of which a shard is missing, was replaced, or is not what the manifest says."""
    for number, shard in enumerate(manifest.shards):
        what = f"shard {number} of {len(manifest.shards)}, {path / shard.folder},"
        try:
            found = name_version(path / shard.folder)
            stated = json.loads((path / shard.folder / "manifest.json").read_text(encoding="utf-8"))["parameters"]
        except (OSError, ValueError, KeyError) as error:
            raise CorruptIndexError(f"{what} cannot be read ({error}); build the shards again.") from error
        if found != shard.version:
            raise CorruptIndexError(
                f"{what} was replaced ({found} instead of {shard.version}); build the shards again."
            )
        says = {**shard.parameters, "items": shard.items}
        for name, value in stated.items():
            if says.get(name) != value:
                raise CorruptIndexError(
                    f"{what} has {name} {show(value)} but {NAME} says {show(says.get(name))}; build the shards again."
                )
