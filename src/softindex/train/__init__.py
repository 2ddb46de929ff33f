"""Training against millions of classes: samplers of negatives, and a loss that corrects for them."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from softindex.errors import MissingDependencyError

    raise MissingDependencyError(
        'softindex.train needs torch; run pip install ".[train]" in a checkout of softindex.'
    ) from error

from softindex.train.baselines import LSHSampler, SphereSampler
from softindex.train.contract import Negatives, NotRefreshedError, Sampler
from softindex.train.diagnosis import Diagnosis, diagnose
from softindex.train.learnable import CodebookLoss, LearnableMIDXSampler
from softindex.train.loss import SampledSoftmaxLoss, sampled_cross_entropy
from softindex.train.midx import MIDXSampler
from softindex.train.off_policy import OffPolicyLoss
from softindex.train.refresh import Refresher
from softindex.train.static import InBatchSampler, LogUniformSampler, UniformSampler, UnigramSampler
from softindex.train.two_level import TwoLevelSampler

__all__ = [
    "CodebookLoss",
    "Diagnosis",
    "InBatchSampler",
    "LSHSampler",
    "LearnableMIDXSampler",
    "LogUniformSampler",
    "MIDXSampler",
    "Negatives",
    "NotRefreshedError",
    "OffPolicyLoss",
    "Refresher",
    "SampledSoftmaxLoss",
    "Sampler",
    "SphereSampler",
    "TwoLevelSampler",
    "UniformSampler",
    "UnigramSampler",
    "diagnose",
    "sampled_cross_entropy",
]
