"""Estimates of what a policy would have earned, from decisions that another one made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from softindex.arguments import check_choice, check_confidence, check_positive
from softindex.decisions.diagnosis import Diagnosis, diagnose
from softindex.decisions.intervals import INTERVALS, Interval, find_interval
from softindex.decisions.scoring import Scored
from softindex.errors import InputError
from softindex.records import Doubles

__all__ = ["Form", "Value", "clipped", "doubly_robust", "ips", "slate_weights", "snips"]

Form = Literal["standard", "cascade", "independent"]
FORMS: tuple[str, ...] = get_args(Form)


@dataclass(frozen=True, slots=True)
class Value:
    """What a policy is expected to earn per decision."""

    estimator: str
    value: float
    low: float
    """The interval has the value in it with the `confidence`, over what users might have done and been shown."""
    high: float
    confidence: float
    interval: str
    """How it was computed: "bootstrap" or "bernstein"."""
    decisions: int
    diagnosis: Diagnosis
    """Effective sample size, largest weight, missing support."""
    bounds: tuple[float, float] | None = None
    """Where logged propensities lie between proven bounds ("certified"): no value within them gives an estimate outside
    of this."""
    law_error: float = 0.0
    """The estimate is of the policy as its draws are made.  The exact softmax earns about this much more or less at
    most: the mean total variation that draws state, an estimate itself, for each item, times the range of rewards."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before the value is used; empty where nothing is wrong."""
        return self.diagnosis.warnings

    def __str__(self) -> str:
        text = f"{self.estimator}: {self.value:.6g}, {self.confidence:.0%} interval {self.low:.6g} to {self.high:.6g}"
        return "\n".join([text, *(f"  warning: {warning}" for warning in self.warnings)])


def slate_weights(logged: Doubles, target: Doubles, form: str) -> Doubles:
    """(N, n) importance weight of the reward of each item.

    Args:
        logged: (N, n) log-probability of each step when it was drawn.
        target: (N, n) under the new policy.
        form: "standard": the ratio of the entire slate, for every item.  "cascade": of the items up to this one, which
            is right if a reward depends on what is shown before and with it.  "independent": of this item alone, which
            is right if a reward depends on the item and its place only; logged and target are then those of the item at
            its position.
    """
    steps = np.where(np.isneginf(target), -np.inf, target - logged)
    if form == "standard":
        steps = np.broadcast_to(steps.sum(axis=1, keepdims=True), steps.shape)
    elif form == "cascade":
        steps = np.cumsum(steps, axis=1)
    weights: Doubles = np.exp(steps)
    return weights


def ips(scored: Scored, *, form: Form = "cascade", **options: Any) -> Value:
    """Inverse propensity score: the mean of weight times reward.  Unbiased where nothing lacks support.

    Args:
        scored: From `score`.
        form: For slates; see `slate_weights`.  The same for one item.
        **options: `confidence` (0.95), `interval` ("bootstrap" or "bernstein"), `repeats` (1000), `seed` (0), `reach`
            (largest possible weight times reward, for "bernstein"; None takes the largest one seen).
    """
    weights = _weights(scored, form)
    return _mean_value("ips", scored, weights, (weights * scored.rewards).sum(axis=1), options, form=form)


def clipped(scored: Scored, limit: float, *, form: Form = "cascade", **options: Any) -> Value:
    """IPS with weights of at most `limit`: less variance, and a bias towards 0 for rewards above 0.

    Args:
        scored: From `score`.
        limit: Largest weight.
        form: As for `ips`, like all further options.
    """
    most = check_positive(limit, "limit", 10.0)
    weights = np.minimum(_weights(scored, form), most)
    terms = (weights * scored.rewards).sum(axis=1)
    return _mean_value(f"ips clipped at {most:g}", scored, weights, terms, options, form=form, limit=most)


def snips(scored: Scored, *, form: Form = "cascade", **options: Any) -> Value:
    """Self-normalised IPS: weights are divided by their mean.  A small bias, and mostly less variance.

    Args:
        scored: From `score`.
        form: As for `ips`, like all further options.  For slates, weights are normalised position by position.
    """
    weights = _weights(scored, form)
    n = scored.rewards.shape[1]

    def ratio(means: Doubles) -> Doubles:
        mass = means[..., n:]
        found: Doubles = np.divide(means[..., :n], mass, out=np.zeros_like(mass), where=mass > 0).sum(axis=-1)
        return found

    if options.get("interval") == "bernstein":
        raise InputError('interval "bernstein" is for means, and snips is a ratio; use "bootstrap", ips or clipped.')
    columns = np.hstack([weights * scored.rewards, weights])
    return _finish("snips", scored, weights, find_interval(columns, ratio, **_checked(options)), form=form)


def doubly_robust(scored: Scored, *, limit: float | None = None, **options: Any) -> Value:
    """The model's expected reward under the policy, corrected by weighted residuals of what was logged.

    Unbiased where nothing lacks support, however poor the model; the better the model, the less variance.

    Args:
        scored: From `score(..., reward_model=...)`, or with `predicted` and `expected` filled by you.
        limit: Largest weight; None: as they are.
        **options: As for `ips`.
    """
    if scored.predicted is None or scored.expected is None:
        raise InputError("there are no predicted rewards; pass reward_model to score.")
    weights = _weights(scored, "standard")
    if limit is not None:
        weights = np.minimum(weights, check_positive(limit, "limit", 10.0))
    terms = (scored.expected + weights * (scored.rewards - scored.predicted)).sum(axis=1)
    return _mean_value("doubly robust", scored, weights, terms, options, form="standard", limit=limit)


def _weights(scored: Scored, form: Any) -> Doubles:
    name = check_choice(form, "form", FORMS)
    if name != "independent" or scored.rewards.shape[1] == 1:
        return slate_weights(scored.logged, scored.target, name)
    if scored.logged_positions is None or scored.target_positions is None:
        raise InputError(
            'form "independent" needs the probability of each item at its position; see decisions.position_marginals.'
        )
    return slate_weights(scored.logged_positions, scored.target_positions, name)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    known = {"confidence": 0.95, "interval": "bootstrap", "repeats": 1000, "seed": 0, "reach": None}
    wrong = options.keys() - known.keys()
    if wrong:
        raise InputError(f"there is no option {min(wrong)!r}; use some of {', '.join(known)}.")
    found = known | options
    check_confidence(found["confidence"])
    check_choice(found["interval"], "interval", INTERVALS)
    return found


def _mean_value(
    name: str, scored: Scored, weights: Doubles, terms: Doubles, options: dict[str, Any], **more: Any
) -> Value:
    found = find_interval(terms[:, None], lambda means: means[..., 0], **_checked(options))
    return _finish(name, scored, weights, found, **more)


def _finish(
    name: str, scored: Scored, weights: Doubles, found: Interval, *, form: str, limit: float | None = None
) -> Value:
    spread = float(scored.rewards.sum(axis=1).max() - min(0.0, scored.rewards.sum(axis=1).min()))
    # Each step of a slate may differ from that of the softmax.
    stated = float(np.minimum(1.0, scored.stated_error * scored.rewards.shape[1]))
    return Value(
        name,
        found.value,
        found.low,
        found.high,
        found.confidence,
        found.name,
        len(scored),
        diagnose(scored, weights, clipped=limit is not None),
        bounds=_proven(scored, form, limit) if name.startswith("ips") else None,
        law_error=stated * spread,
    )


def _proven(scored: Scored, form: str, limit: float | None) -> tuple[float, float] | None:
    """The least and the largest IPS estimate that logged propensities within their bounds can give."""
    if scored.low is None or scored.high is None or form == "independent":
        return None
    small, large = (slate_weights(ends, scored.target, form) for ends in (scored.high, scored.low))
    if limit is not None:
        small, large = np.minimum(small, limit), np.minimum(large, limit)
    gain, loss = np.maximum(scored.rewards, 0.0), np.minimum(scored.rewards, 0.0)
    low = (small * gain + large * loss).sum(axis=1).mean()
    return float(low), float((large * gain + small * loss).sum(axis=1).mean())
