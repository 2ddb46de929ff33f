"""What a worker process serves: an index, a catalogue or a learned-similarity index, and its successors."""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from softindex.errors import InputError, SoftindexError, with_article
from softindex.index import Index
from softindex.laws import METHODS
from softindex.live import LiveIndex, Status, is_catalogue
from softindex.live import open as open_catalogue
from softindex.loading import load
from softindex.mol import SAMPLE_METHODS, MixtureIndex
from softindex.service.demo import demo_index
from softindex.sharded import ShardedIndex

if TYPE_CHECKING:
    from softindex.ray import RayIndex

__all__ = ["Served", "check_options"]

MANIFEST = "manifest.json"
Indexed = Index | MixtureIndex | ShardedIndex


class Served:
    """The index that requests read, replaced in one step when there is a newer one.

    Requests read `index` once and use what they got: they never see half of a change.
    """

    def __init__(self, path: str | None, *, read_only: bool, ray: str | None = None) -> None:
        self.path, self._read_only = path, read_only
        self.live: LiveIndex | None = None
        self.reloads, self.failures = 0, 0
        self.error: str | None = None
        self.checked = False
        """Whether a vector was looked up: the first look checks the file."""
        self._current: Indexed | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._version: str | None = None
        self._loading = threading.Lock()
        self._names: tuple[Any, list[str], list[Any]] | None = None
        self._cluster: RayIndex | None = None
        if path is None:
            self._current = demo_index()
        elif ray is not None:
            self._current = self._cluster = _open_shards(path, ray)
        elif is_catalogue(path):
            self.live = open_catalogue(path, read_only=read_only)
            self._take_snapshot()
        else:
            self._stamp, self._current, self._version = _stamp(path), _load(path), _version(path)

    @property
    def index(self) -> Indexed:
        """The present index; InputError where a catalogue has no items yet."""
        current = self._current
        if current is None:
            raise InputError("the catalogue holds no items; upsert some before you draw.")
        return current

    @property
    def versioned(self) -> tuple[Indexed, str | None]:
        """The present index, and the hash of its manifest if it was saved: both of one moment."""
        current, version = self.index, self._version
        return (current, version) if current is self._current else self.versioned

    @property
    def kind(self) -> str:
        """Of what is served."""
        if self.live is not None:
            return "catalogue"
        if self._cluster is not None:
            return "sharded"
        return "index" if isinstance(self._current, Index) else "learned-similarity"

    @property
    def writable(self) -> bool:
        """Whether items can be changed."""
        return self.live is not None and not self._read_only

    @property
    def dim(self) -> int | None:
        """Numbers of a query; None where queries are components."""
        if self.live is not None:
            return self.live.dim
        current = self.index
        if isinstance(current, Index | ShardedIndex):
            return current.dim
        return None if current.spec.query is None else int(current.spec.query.hidden.shape[1])

    @property
    def methods(self) -> list[str]:
        """Of `sample`, as far as this index serves them."""
        current = self._current
        if isinstance(current, MixtureIndex):
            return list(SAMPLE_METHODS)
        known = {} if current is None else current.parameters
        skipped = [
            *(["hierarchical"] if not known.get("tree") else []),
            *(["sd-"] if known.get("dispersion") == "none" else []),
        ]
        return [name for name in METHODS if not any(part in name for part in skipped)]

    @property
    def snapshot(self) -> int | None:
        """Number of the present state of a catalogue."""
        current = self._current
        return current.snapshot if isinstance(current, Index) else None

    def __len__(self) -> int:
        return 0 if self._current is None else len(self._current)

    def status(self) -> Status | None:
        """What a catalogue reports of itself."""
        return None if self.live is None else self.live.status()

    def function(self, name: str, index: Indexed) -> Any:
        """The method of this index with this name; InputError where it has none."""
        found = getattr(index, name, None)
        if found is None:
            raise InputError(f"{with_article(type(index).__name__)} has no {name}; use sample or top_k.")
        return found

    # What takes long: not for the event loop

    def refresh(self, *, force: bool = False) -> bool:
        """Take what was committed or saved since; True if there was something.  The old one serves until then."""
        with self._loading:
            try:
                changed = self._refresh_live() if self.live is not None else self._refresh_saved(force=force)
                self.failures, self.error = (0, None) if changed else (self.failures, self.error)
            except (SoftindexError, OSError) as error:
                # A save may be half way: the next round tries again, and the old index goes on.
                self.failures, self.error = self.failures + 1, str(error)
                return False
            self.reloads += changed
            return changed

    def upsert(self, ids: Any, vectors: Any, **options: Any) -> int:
        """Change items; requests that come after this returned see them."""
        return self._change("upsert", ids, vectors, **options)

    def remove(self, ids: Any, **options: Any) -> int:
        """Remove items; requests that come after this returned do not see them."""
        return self._change("remove", ids, **options)

    def starting_with(self, text: str, most: int) -> list[int | str]:
        """Ids that begin with this text, or else contain it, regardless of case."""
        current = self.index
        if isinstance(current, ShardedIndex):
            raise InputError("the ids of shards are not listed; pass entire ids.")
        known = self._names
        if known is None or known[0] is not current:
            ids = np.sort(current.ids).tolist()
            known = self._names = (current, [str(one).casefold() for one in ids], ids)
        wanted, (_, words, ids) = text.casefold(), known
        found = []
        for test in (str.startswith, str.__contains__):
            for word, name in zip(words, ids, strict=True):
                if test(word, wanted) and name not in found:
                    found.append(name)
                    if len(found) == most:
                        return found
        return found

    def close(self) -> None:
        """Let others write the catalogue, and stop the actors of shards."""
        if self._cluster is not None:
            self._cluster.close()
        if self.live is not None:
            self.live.close()

    def _change(self, name: str, *arguments: Any, **options: Any) -> int:
        if self.live is None or not self.writable:
            raise InputError(
                "items cannot be changed here; serve a catalogue made with softindex live, without --read-only."
            )
        number: int = getattr(self.live, name)(*arguments, **options)
        with self._loading:
            self._take_snapshot()
        return number

    def _refresh_live(self) -> bool:
        assert self.live is not None
        self.live.refresh()
        return self._take_snapshot() if self.live.number != self.snapshot else False

    def _take_snapshot(self) -> bool:
        assert self.live is not None
        before, self._current = self._current, self.live.snapshot() if len(self.live) else None
        return before is not self._current

    def _refresh_saved(self, *, force: bool) -> bool:
        # Shards stay those of the build that was opened.
        if self.path is None or self._cluster is not None:
            return False
        stamp = _stamp(self.path)
        if not force and stamp in (None, self._stamp):
            return False
        loaded, version = _load(self.path), _version(self.path)
        self._stamp, self._version, self._current = stamp, version, loaded
        return True


def check_options(kind: type, name: str, options: dict[str, Any]) -> None:
    """InputError for an option that this method of this kind of index does not have."""
    unknown = options.keys() - _parameters(kind, name)
    if unknown:
        raise InputError(f"{min(unknown)} is not an option of {name} for this kind of index; leave it out.")


@cache
def _parameters(kind: type, name: str) -> frozenset[str]:
    return frozenset(inspect.signature(getattr(kind, name)).parameters)


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Changes with every save, which writes a new directory; None for the moment in which there is none."""
    try:
        found = os.stat(os.path.join(path, MANIFEST))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _version(path: str) -> str | None:
    """Names a saved index: its manifest has the checksums of all its files."""
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError:
        return None


def _open_shards(path: str, address: str) -> RayIndex:
    cluster = import_module("softindex.ray")
    cluster.connect(address)
    opened: RayIndex = cluster.open(path)
    return opened


def _load(path: str) -> Indexed:
    loaded: object = load(path)
    if not isinstance(loaded, Index | MixtureIndex):
        raise InputError(
            f"{path} holds {with_article(type(loaded).__name__)}, which cannot be served; use it in Python."
        )
    return loaded
