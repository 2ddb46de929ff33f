"""The laws of a sharded index in float64, from their definitions: a readable twin of the coordinator."""

import numpy as np


def log_sum(values):
    peak = np.max(values)
    return peak + np.log(np.sum(np.exp(np.asarray(values, float) - peak)))


def softmax_law(vectors, query, temperature, log_bias=None):
    """(n,) log-probabilities of the softmax of all items."""
    logits = vectors.astype(float) @ query.astype(float) / temperature
    logits = logits if log_bias is None else logits + log_bias
    return logits - log_sum(logits)


def two_step_law(shards, ids, query, temperature, **options):
    """(n,) log-probabilities of ids: a shard by its own estimate of Z, and an item by its own law."""
    log_z = np.array([one.log_partition(query, temperature=temperature, **options).value for one in shards])
    law = np.full(len(ids), -np.inf)
    for shard, value in zip(shards, log_z, strict=True):
        own = shard.log_prob(query, ids, temperature=temperature, missing="-inf", **options)
        held = np.isfinite(own)
        law[held] = value - log_sum(log_z) + own[held]
    return law


def inverse_cdf(log_z, uniform):
    """The shard that a number in [0, 1) picks."""
    reached = 0.0
    for shard, value in enumerate(log_z):
        reached += np.exp(value - log_sum(log_z))
        if uniform < reached:
            return shard
    return len(log_z) - 1


def slate(log_z, slates, uniforms):
    """Shards and log_prob of a slate; slates: for each shard the log_prob of its own steps, all its items."""
    taken, picked, result = [0] * len(log_z), [], []
    left = list(log_z)
    for uniform in uniforms:
        shard = inverse_cdf(left, uniform)
        step = slates[shard][taken[shard]]
        picked.append(shard)
        result.append(left[shard] - log_sum(left) + step)
        taken[shard] += 1
        # What is left of the shard is what it did not draw.
        gone = taken[shard] == len(slates[shard])
        left[shard] = -np.inf if gone else left[shard] + np.log1p(-np.exp(step))
    return picked, result


def nucleus(law, top_p):
    """Rows of the fewest most probable items that reach top_p."""
    order = np.argsort(-law, kind="stable")
    reached = np.cumsum(np.exp(law[order]))
    return order[: int(np.argmax(reached >= top_p)) + 1]
