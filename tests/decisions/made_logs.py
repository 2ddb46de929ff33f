"""Small worlds where every probability and every value is known."""

import numpy as np

import softindex
from softindex import decisions

D = 6


def made_index(n=30, seed=0, **options):
    rng = np.random.default_rng(seed)
    return softindex.build(rng.standard_normal((n, D)).astype(np.float32), clusters=min(6, n), tree=True, **options)


def made_queries(b, seed=1):
    return np.random.default_rng(seed).standard_normal((b, D)).astype(np.float32)


def log_of(folder, index, queries, n=1, *, rewards=None, temperature=1.0, seed=0, **options):
    """A log of one call, with rewards(queries, ids) joined; returns the log and the draws."""
    log = decisions.Log(folder)
    draws = index.sample(queries, n, temperature=temperature, seed=seed, **options)
    names = log.append(queries, draws, temperature=temperature, **options)
    if rewards is not None:
        log.add_rewards(names, rewards(queries, draws.ids))
    return log, draws


def clicks(seed=2, n=30):
    """A reward that is a function of the item, between 0 and 1."""
    table = np.random.default_rng(seed).random(n)
    return table, lambda queries, ids: table[ids]
