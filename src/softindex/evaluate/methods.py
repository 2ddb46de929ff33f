"""Which methods an audit measures, and the names they go by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from softindex.errors import MethodError, show
from softindex.index import Index
from softindex.laws import CERTIFIED, LAWS, METHODS, TOP_K, check_probes, find_law
from softindex.records import Json

__all__ = ["DEFAULT", "DEFAULT_LABEL", "AuditMethod", "choose_methods", "name_dispersion"]

DEFAULT_LABEL = "sd-2ls (default)"
PROBES = (0, 4, 16, 64)
"""Numbers of probes that an audit tries when no methods are named."""
PROBE_DIGITS = 20
"""A longer number of probes is a typo, and Python refuses to parse very long ones."""


@dataclass(frozen=True, slots=True)
class AuditMethod:
    """A method with its probes: None scans adaptively, up to a tolerance; 0 scores no item before it chooses."""

    method: str
    probes: int | None = None
    tolerance: float | None = None

    def label(self, dispersion: str) -> str:
        """The name in tables and plots.

        `dispersion` is what the index keeps: "none", "full" or "rank 8".  sd-2ls is the published method only with
        full covariances, so any other index names its rank instead.
        """
        if not self.estimates:
            return self.method
        if self.probes is None:
            return DEFAULT_LABEL if self == DEFAULT else f"{self.method}, adaptive"
        if self.probes > 0:
            return f"{self.method}, {self._counted}"
        if LAWS[self.method].dispersion and dispersion != "full":
            return f"{self.method}, {dispersion}, no probes"
        return f"{self.method}, published"

    @property
    def phrase(self) -> str:
        """The name in a sentence."""
        return f"{self.method} with {self._counted}" if self.estimates else self.method

    @property
    def _counted(self) -> str:
        if self.probes == 1:
            return "1 probe"
        return f"{'adaptive' if self.probes is None else self.probes or 'no'} probes"

    @property
    def spec(self) -> str:
        """The name that `Index.audit` accepts: sd-2ls, or sd-2ls:16 for 16 probes."""
        return self.method if self.probes is None else f"{self.method}:{self.probes}"

    @property
    def estimates(self) -> bool:
        """Whether the method estimates the masses of clusters, and so can scan some of them first."""
        return self.method in LAWS and LAWS[self.method].kind == "estimated"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for `Index.sample`, `Index.log_prob` and `Index.cluster_log_masses`."""
        return {"method": self.method, "probes": self.probes, "tolerance": self.tolerance}

    @classmethod
    def parse(cls, name: Any) -> AuditMethod:
        """Read a name such as sd-2ls:16; MethodError where there is no such method."""
        if isinstance(name, AuditMethod):
            return name
        if isinstance(name, str):
            method, colon, probes = name.partition(":")
            if method in METHODS and not colon:
                return cls(method)
            counted = cls(method, int(probes)) if probes.isdecimal() and len(probes) < PROBE_DIGITS else None
            if counted is not None and counted.estimates:
                return counted
            if method in METHODS and counted is not None:
                raise MethodError(f"{method} takes no probes in an audit; write {method} alone.")
        raise MethodError(
            f"there is no method {show(name)}; use one of {', '.join(METHODS)}, optionally followed by a colon and a "
            "number of probes, as in sd-2ls:16."
        )


DEFAULT = AuditMethod("sd-2ls")


def name_dispersion(parameters: Json) -> str:
    """The dispersion that an index keeps, in words: "none", "full" or "rank 8"."""
    kind = str(parameters["dispersion"])
    return f"rank {parameters['rank']}" if kind == "rank" else kind


def choose_methods(index: Index, methods: Any) -> list[AuditMethod]:
    """The methods to measure: those named, or all that the index supports; MethodError for one that it does not."""
    if methods is None:
        return _all_methods(index)
    names = list(methods) if isinstance(methods, Iterable) and not isinstance(methods, str) else [methods]
    chosen = [AuditMethod.parse(name) for name in names]
    if not chosen:
        raise MethodError("there are no methods to audit; name at least one, or pass None for all.")
    parameters = index.parameters
    for one in chosen:
        find_law(one.method, parameters["dispersion"], parameters["tree"])
        check_probes(one.probes, None, one.method, index.clusters)
    return list(dict.fromkeys(chosen))


def _all_methods(index: Index) -> list[AuditMethod]:
    parameters = index.parameters
    has_dispersion = parameters["dispersion"] != "none"
    chosen = [AuditMethod("exact"), AuditMethod(CERTIFIED), AuditMethod(TOP_K), AuditMethod("2ls", 0)]
    for method in ("s-2ls", "sd-2ls") if has_dispersion else ("s-2ls",):
        chosen += [AuditMethod(method, probes) for probes in PROBES if probes <= index.clusters]
        chosen.append(AuditMethod(method))
    if parameters["tree"]:
        chosen += [AuditMethod("hierarchical"), AuditMethod("s-hierarchical")]
        chosen += [AuditMethod("sd-hierarchical")] if has_dispersion else []
    return chosen
