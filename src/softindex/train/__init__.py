"""Train against millions of classes: samplers of negatives, and a loss that corrects for them."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from softindex.errors import MissingDependencyError

    raise MissingDependencyError(
        'softindex.train needs torch; install it with pip install "softindex[train]".'
    ) from error

from softindex.train.contract import Negatives, NotRefreshedError, Sampler
from softindex.train.loss import SampledSoftmaxLoss, sampled_cross_entropy
from softindex.train.midx import MIDXSampler
from softindex.train.static import InBatchSampler, LogUniformSampler, UniformSampler, UnigramSampler

__all__ = [
    "InBatchSampler",
    "LogUniformSampler",
    "MIDXSampler",
    "Negatives",
    "NotRefreshedError",
    "SampledSoftmaxLoss",
    "Sampler",
    "UniformSampler",
    "UnigramSampler",
    "sampled_cross_entropy",
]
