"""Rare words of a text and the words around them: classes of unequal frequency that depend on shared features."""

import numpy as np

COMMON = 2000
"""The most frequent words, which are features but not classes."""
AROUND = 5
"""Words on each side that are features."""


def contexts(parts, words, most):
    """Examples of the three parts of a text, each (t,), at most `most` of them, and the number of classes.

    An example is a rare word, its class, and the words around it, (examples, 2 * AROUND), where `words` stands for a
    place outside the text.  Words that do not occur in the first part are not classes.
    """
    counts = np.bincount(parts[0], minlength=words)
    rare = np.argsort(-counts, kind="stable")[COMMON:]
    rare = rare[counts[rare] > 0]
    number = np.full(words, -1)
    number[rare] = np.arange(len(rare))
    return [_examples(part, number, words, limit) for part, limit in zip(parts, most, strict=True)], len(rare)


def _examples(tokens, number, words, most):
    """Features (m, 2 * AROUND) and classes (m, 1) of places in a text, chosen at random."""
    places = np.flatnonzero(number[tokens] >= 0)
    if len(places) > most:
        places = np.sort(np.random.default_rng(0).choice(places, most, replace=False))
    padded = np.concatenate([np.full(AROUND, words), tokens, np.full(AROUND, words)])
    steps = np.delete(np.arange(-AROUND, AROUND + 1), AROUND)
    return padded[places[:, None] + AROUND + steps], number[tokens[places]][:, None]
