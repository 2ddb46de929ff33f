"""Shards on a Ray cluster: built in tasks, served by actors, drawn from in batches.  Needs the extra `[ray]`."""

from softindex.ray.batches import sample_dataset
from softindex.ray.building import build
from softindex.ray.manifest import Manifest
from softindex.ray.needed import connect
from softindex.ray.opening import RayIndex, open

__all__ = ["Manifest", "RayIndex", "build", "connect", "open", "sample_dataset"]
