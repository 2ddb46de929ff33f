"""Imports Ray where it is first needed, and checks that a cluster is connected."""

from __future__ import annotations

from typing import Any

from softindex import optional
from softindex.errors import InputError, show

__all__ = ["connect", "connected", "need"]


def need(name: str = "ray") -> Any:
    """The module `ray`, or one inside it."""
    return optional.need(name, user="softindex.ray", extra="ray")


def connect(address: str) -> None:
    """Connect this process to a running cluster."""
    ray = need()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster answers at {show(address)} ({error}); check the address.") from error


def connected() -> Any:
    """The module `ray` of a process that is connected to a cluster: this library never starts one."""
    ray = need()
    if not ray.is_initialized():
        raise InputError("Ray is not connected; call ray.init() to start it here, or ray.init(address='auto').")
    return ray
