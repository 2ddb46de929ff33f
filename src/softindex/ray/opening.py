"""Places an actor for every replica of every shard, and answers as one index: all shards from one version."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from softindex.arguments import check_count, check_positive
from softindex.errors import CorruptIndexError, InputError, ShardError, SoftindexError
from softindex.index import Index
from softindex.loading import load
from softindex.ray.manifest import Manifest, check_shards, name_version, read_manifest
from softindex.ray.needed import connected, need
from softindex.sharded import Answer, Question, ShardedIndex, answer

__all__ = ["RayIndex", "open"]


class RayIndex(ShardedIndex):
    """Shards behind actors of a Ray cluster, with the reading methods of `Index`.  Close it to stop the actors.

    All shards answer from the build that was complete when this was opened.  A call whose shard does not answer in time
    asks another replica of it, and raises `ShardError` if there is none: it never answers from some of the shards.
    """

    def __init__(self, manifest: Manifest, replicas: Sequence[Sequence[Any]], timeout: float) -> None:
        self._fleet = _Fleet(replicas, timeout)
        self.manifest = manifest
        super().__init__(self._fleet.ask, manifest.describe())

    @property
    def build(self) -> str:
        """Name of the build that is read."""
        return self.manifest.build

    def wait(self, timeout: float = 60.0) -> None:
        """Return when a replica of every shard has loaded it; ShardError after so many seconds."""
        self._fleet.wait(check_positive(timeout, "timeout", 60.0))

    def close(self) -> None:
        """Stop the actors."""
        self._fleet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(
    path: str | os.PathLike[str],
    *,
    replicas: int = 1,
    timeout: float = 30.0,
    threads: int = 1,
    cpus: float | None = None,
    memory: int | None = None,
) -> RayIndex:
    """Open the shards that `softindex.ray.build` made, on the cluster that Ray is connected to.

    Every replica of a shard is an actor that maps its files.  Ray places them on as many nodes as it can, restarts
    those that fail, and they load the same version again.

    Args:
        path: The directory, which all nodes see under this name.
        replicas: Actors for each shard.  With one, a lost node makes calls fail until its shards are loaded elsewhere.
        timeout: Seconds for a shard to answer; then another replica is asked.
        threads: Threads of each actor.
        cpus: CPUs that an actor reserves; as many as it has threads when None.
        memory: Bytes of memory that an actor asks Ray for; none when None.

    Returns:
        The index, when every shard is loaded.
    """
    ray = connected()
    manifest, count = read_manifest(path), check_count(replicas, "replicas", 64)
    workers, seconds = check_count(threads, "threads", 1024), check_positive(timeout, "timeout", 30.0)
    needs: dict[str, Any] = {"num_cpus": workers if cpus is None else cpus}
    needs |= {} if memory is None else {"memory": check_count(memory, "memory")}
    actor = ray.remote(max_restarts=-1, max_task_retries=0, **needs)(_Holder)
    root = Path(path).absolute()
    check_shards(root, manifest)
    places = _places(ray)
    placed = [
        [
            actor.options(scheduling_strategy=places[(number + replica) % len(places)]).remote(
                str(root / shard.folder), shard.version, number, workers
            )
            for replica in range(count)
        ]
        for number, shard in enumerate(manifest.shards)
    ]
    index = RayIndex(manifest, placed, seconds)
    try:
        index.wait()
    except BaseException:
        index.close()
        raise
    return index


def _places(ray: Any) -> list[Any]:
    """Where actors should go: replicas of a shard to different nodes, as long as these live."""
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
    strategies = need("ray.util.scheduling_strategies")
    return [strategies.NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes] or ["SPREAD"]


class _Holder:
    """The actor of one replica of one shard."""

    def __init__(self, folder: str, version: str, number: int, threads: int) -> None:
        found = name_version(Path(folder))
        if found != version:
            raise CorruptIndexError(
                f"{folder} was replaced since the shards were opened ({found} instead of {version}); open them again."
            )
        loaded: object = load(folder)
        if not isinstance(loaded, Index):
            raise CorruptIndexError(f"{folder} does not hold an index; build the shards again.")
        self._index, self._number, self._threads = loaded, number, threads

    def answer(self, question: Question) -> Answer:
        """Everything that the coordinator may need."""
        return answer(self._index, question, self._number, self._threads)

    def ready(self) -> int:
        """The number of the shard, when it is loaded."""
        return self._number


class _Fleet:
    """The actors: asks each shard once, and replicas of those that do not answer."""

    def __init__(self, replicas: Sequence[Sequence[Any]], timeout: float) -> None:
        self._ray = connected()
        self._replicas, self._timeout = replicas, timeout
        # The replica of each shard that is asked first; it moves on when one fails, and with every call.
        self._next = [0] * len(replicas)
        self._closed = False

    def ask(self, question: Question) -> list[Answer]:
        """The answers of all shards, in order."""
        if self._closed:
            raise InputError("this index is closed; open it again.")
        # Replicas take turns.
        self._next = [place + 1 for place in self._next]
        shared = self._ray.put(question) if len(self._replicas) > 1 else question
        return self._gather("answer", (shared,), self._timeout)

    def wait(self, timeout: float) -> None:
        """Return when every shard is loaded once."""
        self._gather("ready", (), timeout)

    def close(self) -> None:
        """Stop all actors."""
        self._closed = True
        for actors in self._replicas:
            for actor in actors:
                with suppress(Exception):
                    self._ray.kill(actor)

    def _gather(self, method: str, arguments: tuple[Any, ...], timeout: float) -> list[Any]:
        found: dict[int, Any] = {}
        tried = dict.fromkeys(range(len(self._replicas)), 0)
        waiting: dict[Any, tuple[int, float]] = {}
        for shard in tried:
            self._send(shard, method, arguments, tried, waiting, timeout)
        while waiting:
            first = min(until for _, until in waiting.values())
            left = max(first - time.monotonic(), 0.0)
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=left)
            late = [] if ready else [ref for ref, (_, until) in waiting.items() if until <= time.monotonic()]
            for ref in (*ready, *late):
                shard, _ = waiting.pop(ref)
                if shard in found:
                    continue
                reason = self._take(ref, shard, found) if ref in ready else f"did not answer within {timeout:g} s"
                if reason is None:
                    continue
                if tried[shard] >= len(self._replicas[shard]):
                    self._refuse(shard, reason)
                self._next[shard] += 1
                self._send(shard, method, arguments, tried, waiting, timeout)
        return [found[shard] for shard in range(len(self._replicas))]

    def _send(
        self, shard: int, method: str, arguments: tuple[Any, ...], tried: dict[int, int], waiting: Any, timeout: float
    ) -> None:
        actors = self._replicas[shard]
        actor = actors[self._next[shard] % len(actors)]
        tried[shard] += 1
        waiting[getattr(actor, method).remote(*arguments)] = shard, time.monotonic() + timeout

    def _take(self, ref: Any, shard: int, found: dict[int, Any]) -> str | None:
        """Keep an answer; or say why there is none.  What the library refuses, every replica would refuse."""
        try:
            found[shard] = self._ray.get(ref)
            return None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SoftindexError):
                raise error.cause from None
            return f"failed ({error.cause!r})"
        except self._ray.exceptions.RayError as error:
            return f"is lost ({type(error).__name__})"

    def _refuse(self, shard: int, reason: str) -> None:
        count = len(self._replicas[shard])
        others = "and has no other replica" if count == 1 else f"and neither did its other {count - 1} replicas"
        raise ShardError(
            f"shard {shard} of {len(self._replicas)} {reason}, {others}; nothing is answered from the other shards "
            "alone: try again when it is loaded elsewhere, or open more replicas.",
            shard,
        )
