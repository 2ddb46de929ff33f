"""From draws to decisions: log what was shown and how probable it was, and evaluate other policies on it."""

from softindex.decisions.batches import Batch
from softindex.decisions.diagnosis import Diagnosis
from softindex.decisions.estimators import Value, clipped, doubly_robust, ips, slate_weights, snips
from softindex.decisions.exporting import action_distribution, to_obp, to_obp_slates, to_vw
from softindex.decisions.log import Log
from softindex.decisions.marginals import Marginals, position_marginals, slot_marginals
from softindex.decisions.policies import Policy
from softindex.decisions.replaying import Replay, replay
from softindex.decisions.scoring import Scored, score

__all__ = [
    "Batch",
    "Diagnosis",
    "Log",
    "Marginals",
    "Policy",
    "Replay",
    "Scored",
    "Value",
    "action_distribution",
    "clipped",
    "doubly_robust",
    "ips",
    "position_marginals",
    "replay",
    "score",
    "slate_weights",
    "slot_marginals",
    "snips",
    "to_obp",
    "to_obp_slates",
    "to_vw",
]
