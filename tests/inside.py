"""The stage records of an index again, from the arrays it holds, for tests that compare with float64 twins."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np

from softindex.contents import Contents
from softindex.fields import flatten
from softindex.kernels.reference_probing import usual_tails
from softindex.recall import UNMEASURED
from softindex.records import Codes, Dispersion, Moments, Outliers, Tree
from softindex.residuals import stored_vectors


def _record(record, arrays, prefix="", **given):
    names = [field.name for field in fields(record) if field.name not in given]
    return record(**{name: arrays.get(prefix + name) for name in names}, **given)


def _dispersion(arrays, parameters, prefix=""):
    return _record(Dispersion, arrays, prefix, kind=parameters["dispersion"], rank=parameters["rank"])


def look_inside(index):
    """vectors, offsets, log_bias, moments, codes, outliers, tree and parameters of an index."""
    arrays, parameters = index._contents.arrays, index.parameters
    return SimpleNamespace(
        vectors=np.asarray(stored_vectors(arrays)),
        offsets=arrays["offsets"],
        log_bias=arrays.get("log_bias"),
        moments=_record(Moments, arrays, dispersion=_dispersion(arrays, parameters)),
        codes=_record(Codes, arrays, "code_") if parameters["codes"] else None,
        outliers=_record(Outliers, arrays, "outlier_") if "outlier_positions" in arrays else None,
        tree=_record(Tree, arrays, "tree_", dispersion=_dispersion(arrays, parameters, "tree_"))
        if parameters["tree"]
        else None,
    )


def put_together(vectors, offsets, ids, log_bias, moments, codes=None, sketch=None, residuals=None):
    """Contents with a partition of the test's own choice."""
    stored = {"vectors": vectors} if residuals is None else flatten(residuals, "residual_")
    arrays = {**stored, "offsets": offsets, **flatten(moments)}
    arrays |= {} if log_bias is None else {"log_bias": log_bias}
    arrays |= {} if codes is None else flatten(codes, "code_")
    arrays |= (
        {}
        if sketch is None
        else {
            **flatten(sketch, "sketch_"),
            "sketch_recall": UNMEASURED,
            "sketch_tails": usual_tails(),
        }
    )
    parameters = {"dim": vectors.shape[1], "bias": False, "codes": codes is not None, "tree": False}
    parameters |= {"sketch": sketch is not None, "log_bias": log_bias is not None}
    parameters |= {"dispersion": moments.dispersion.kind, "rank": moments.dispersion.rank, "ids": ids.kind}
    return Contents(arrays, ids, {**parameters, "items": len(vectors), "clusters": len(offsets) - 1})
