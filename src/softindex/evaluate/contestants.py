"""The methods that an audit compares, each with its number of probes and its name in tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.contents import Contents
from softindex.errors import MethodError, show
from softindex.index import Index
from softindex.kernels import Request
from softindex.laws import CERTIFIED, LAWS, METHODS, TOP_K
from softindex.records import Doubles, Floats

__all__ = ["DEFAULT", "Contestant", "choose", "law_masses", "memory"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method, and its probes: None is adaptive, to a tolerance, and 0 the law as published."""

    method: str
    probes: int | None = None
    tolerance: float | None = None

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        if not self.estimates:
            return self.method
        if self.probes is None:
            return "sd-2ls (default)" if self == DEFAULT else f"{self.method}, adaptive"
        return f"{self.method}, published" if self.probes == 0 else f"{self.method}, {self._counted}"

    @property
    def phrase(self) -> str:
        """The name in a sentence."""
        if not self.estimates:
            return self.method
        return f"{self.method} with {self._counted}"

    @property
    def _counted(self) -> str:
        if self.probes == 1:
            return "1 probe"
        return f"{'adaptive' if self.probes is None else self.probes or 'no'} probes"

    @property
    def spec(self) -> str:
        """The name as a caller writes it: sd-2ls, or sd-2ls:16."""
        return self.method if self.probes is None else f"{self.method}:{self.probes}"

    @property
    def estimates(self) -> bool:
        """Whether the method estimates the masses of clusters, and so may probe some."""
        return self.method in LAWS and LAWS[self.method].kind == "estimated"

    @property
    def options(self) -> dict[str, Any]:
        """Options for `sample` and `log_prob`."""
        return {"method": self.method, "probes": self.probes, "tolerance": self.tolerance}


DEFAULT = Contestant("sd-2ls")
PROBES = (0, 4, 16, 64)


def choose(index: Index, methods: Any) -> list[Contestant]:
    """The requested contestants, or all that the index serves; MethodError for one that it does not."""
    if methods is None:
        return _all(index)
    names = list(methods) if isinstance(methods, Iterable) and not isinstance(methods, str) else [methods]
    chosen = [_parse(name) for name in names]
    if not chosen:
        raise MethodError("there are no methods to audit; name at least one, or pass None for all.")
    for contestant in chosen:
        index._law(contestant.method, contestant.probes, None)
    return list(dict.fromkeys(chosen))


def _all(index: Index) -> list[Contestant]:
    facts = index.parameters
    dispersed = facts["dispersion"] != "none"
    served = [Contestant("exact"), Contestant(CERTIFIED), Contestant(TOP_K), Contestant("2ls", 0)]
    for method in ("s-2ls", "sd-2ls") if dispersed else ("s-2ls",):
        served += [Contestant(method, probes) for probes in PROBES if probes <= index.clusters]
        served.append(Contestant(method))
    if facts["tree"]:
        served += [Contestant("hierarchical"), Contestant("s-hierarchical")]
        served += [Contestant("sd-hierarchical")] if dispersed else []
    return served


def _parse(name: Any) -> Contestant:
    """sd-2ls:16 is sd-2ls with 16 probes."""
    if isinstance(name, Contestant):
        return name
    if isinstance(name, str):
        method, colon, probes = name.partition(":")
        if method in METHODS and not colon:
            return Contestant(method)
        counted = Contestant(method, int(probes)) if probes.isdecimal() and len(probes) < 20 else None
        if counted is not None and counted.estimates:
            return counted
        if method in METHODS and counted is not None:
            raise MethodError(f"{method} takes no probes in an audit; write {method} alone.")
    raise MethodError(
        f"there is no method {show(name)}; use one of {', '.join(METHODS)}, with a colon and a number of probes if "
        "you like, as in sd-2ls:16."
    )


def law_masses(
    index: Index, queries: Floats, contestant: Contestant, temperature: float, threads: int
) -> tuple[Doubles, Doubles]:
    """Log masses (b, k) that the law gives the clusters, not normalised, and its stated error (b,)."""
    law, clusters, tolerance = index._law(contestant.method, contestant.probes, contestant.tolerance)
    b = len(queries)
    masses, error = np.empty((b, index.clusters)), np.empty(b)
    request = Request(queries, law, temperature, clusters, tolerance, threads=threads)
    index._engine.masses(request, masses, error, np.empty(b, np.int64))
    return masses, error


def memory(contents: Contents, method: str) -> int:
    """Bytes of the arrays that a draw by this method may read."""
    moments, tree, codes = contents.moments, contents.tree, contents.codes
    law = LAWS.get(method, LAWS["sd-2ls"])
    arrays: list[Any] = [contents.vectors, contents.offsets, contents.log_bias]
    form = moments.dispersion
    if law.kind == "tree" and tree is not None:
        arrays += [tree.children, tree.means, tree.log_sizes]
        form = tree.dispersion
    elif law.kind != "exhaustive":
        arrays += [moments.means, moments.log_sizes, moments.radii, moments.norm_max, moments.norm_min]
        arrays += [moments.min_cosine, moments.reach]
        if contents.outliers is not None:
            arrays += [contents.outliers.positions, contents.outliers.vectors]
    if law.dispersion:
        arrays += [form.forms, form.scales, form.spread, form.excess]
    if method == CERTIFIED and codes is not None:
        arrays += [codes.values, codes.scales, codes.errors, codes.lengths]
    return sum(array.nbytes for array in arrays if array is not None)
