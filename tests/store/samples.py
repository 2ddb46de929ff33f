"""A small thing to save, what it means to come back the same, and a forger of manifests."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from softindex.records import Stored
from softindex.store.format import MANIFEST_NAME

SMALL = Stored(
    "index",
    {"seed": 3, "method": "sd-2ls"},
    {
        "means": np.arange(12, dtype=np.float32).reshape(3, 4),
        "sizes": np.array([1, 2, 3], np.int64),
        "empty": np.zeros((0, 5), np.float16),
    },
)


def assert_same(loaded: Stored, expected: Stored) -> None:
    """Equal to the bit, element types, shapes and order of names included."""
    assert loaded.kind == expected.kind
    assert loaded.parameters == expected.parameters
    assert list(loaded.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert loaded.arrays[name].dtype == array.dtype.newbyteorder("<")
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def forge(path: Path, change: dict[str, Any], *, blob: dict[str, Any] | None = None) -> None:
    """Rewrite the manifest, in the right form and with the right checksum."""
    document = json.loads((path / MANIFEST_NAME).read_bytes())
    del document["checksum"]
    document.update(change)
    document["blobs"][0].update(blob or {})
    compact = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = hashlib.sha256(compact.encode()).hexdigest()
    (path / MANIFEST_NAME).write_text(json.dumps(document, sort_keys=True, indent=2) + "\n")


def flip(path: Path, position: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
