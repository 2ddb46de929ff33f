"""Saved directories: written atomically, mapped lazily, and rejected when any byte is wrong."""

from __future__ import annotations

from softindex.records import FORMAT_VERSION
from softindex.store.files import check_path, load, read_manifest, save, verify
from softindex.store.format import EAGER_BYTES, Blob, BlobCheck, Manifest, Verification
from softindex.store.guards import check as check_guards

__all__ = [
    "EAGER_BYTES",
    "FORMAT_VERSION",
    "Blob",
    "BlobCheck",
    "Manifest",
    "Verification",
    "check_guards",
    "check_path",
    "load",
    "read_manifest",
    "save",
    "verify",
]
