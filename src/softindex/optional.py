"""Names of a package that need torch: loaded when they are first asked for, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from softindex.errors import MissingDependencyError

__all__ = ["load_with_torch"]


def load_with_torch(package: str, homes: Mapping[str, str], name: str, extra: str) -> Any:
    """For `__getattr__` of a package: what `name` is in the module of the package that `homes` says.

    Args:
        package: Name of the package.
        homes: Modules of the names that need torch.
        name: What was asked for.
        extra: The extra of softindex that installs torch.

    Raises:
        AttributeError: When the package has no such name.
        MissingDependencyError: When torch is not installed.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{package}.{homes[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f'{name} needs torch; run pip install ".[{extra}]" in a checkout of softindex.'
        ) from error
