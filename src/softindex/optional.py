"""Packages that only some features need: imported when they are first used, or asked for in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from softindex.errors import MissingDependencyError

__all__ = ["load", "need"]


def need(module: str, *, user: str, extra: str) -> Any:
    """Import a module.

    Args:
        module: An optional package, one inside it, or one of ours that imports it.
        user: What needs it, for the sentence.
        extra: The extra of softindex that installs it.

    Raises:
        MissingDependencyError: When a package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        if missing.partition(".")[0] == "softindex":
            raise
        raise MissingDependencyError(
            f'{user} needs {missing}; run pip install ".[{extra}]" in a checkout of softindex.'
        ) from error


def load(package: str, homes: Mapping[str, str], name: str, extra: str) -> Any:
    """For `__getattr__` of a package: what `name` is in the module of the package that `homes` says.

    Args:
        package: Name of the package.
        homes: Modules of the names that need an optional package.
        name: What was asked for.
        extra: As for `need`.

    Raises:
        AttributeError: When the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(need(f"{package}.{homes[name]}", user=name, extra=extra), name)
