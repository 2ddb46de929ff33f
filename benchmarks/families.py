"""Families of vectors and kinds of queries, made by seed, that the stated error is measured on.

`open_family(name, n=50_000)` gives the items and, for every kind of query, some queries.  Every family is scaled so
that the root mean square of the items' lengths is one: a temperature then means about the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import texts

__all__ = ["FAMILIES", "KINDS", "REAL", "STANDARD", "Family", "open_family"]

Array = NDArray[Any]
SPARE = 3000
"""Vectors of each family that are not items: queries are held out of the items."""
STANDARD = "held out"
"""The kind of query that is closest to real traffic: like the items, and none of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Items and queries of one family."""

    name: str
    items: Array
    """(n, d) float32."""
    queries: dict[str, Array]
    """Kind of query -> (b, d) float32."""


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """What a maker returns: vectors (n + spare, d), and vectors of queries of their own kinds where it has them."""

    vectors: Array
    own: dict[str, Array]


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _group(rng: np.random.Generator, n: int, groups: int, spread: float = 1.0) -> Array:
    """The group (n,) of each vector; sizes differ as exp(spread Z) does."""
    weights = np.exp(spread * rng.standard_normal(groups))
    return rng.choice(groups, size=n, p=weights / weights.sum())


def _mixture(rng: np.random.Generator, n: int, d: int, groups: int, noise: float) -> Array:
    return _unit(_normal(rng, groups, d))[_group(rng, n, groups)] + noise * _normal(rng, n, d)


def isotropic(rng: np.random.Generator, n: int, d: int) -> Array:
    """Unit vectors in random directions: no structure for clusters to find."""
    return _unit(_normal(rng, n, d))


def clusters(rng: np.random.Generator, n: int, d: int) -> Array:
    """Groups of very different size, as in the paper's synth-unbalanced."""
    return _mixture(rng, n, d, max(8, n // 200), 0.1)


def lognormal_lengths(rng: np.random.Generator, n: int, d: int) -> Array:
    """Groups, with lengths of all sizes."""
    return _mixture(rng, n, d, max(8, n // 400), 0.1) * np.exp(0.5 * _normal(rng, n, 1))


def heavy_tails(rng: np.random.Generator, n: int, d: int) -> Array:
    """Coordinates of Student's t with three degrees of freedom, with their own lengths."""
    return rng.standard_t(3, size=(n, d))


def heavy_tails_unit(rng: np.random.Generator, n: int, d: int) -> Array:
    """The same, of length one."""
    return _unit(heavy_tails(rng, n, d))


def low_dimensional(rng: np.random.Generator, n: int, d: int) -> Array:
    """Vectors near a curved surface of five dimensions."""
    bent = np.sin(_normal(rng, n, 5) @ _normal(rng, 5, d) + rng.uniform(0, 6.3, d))
    return _unit(bent + 0.02 * _normal(rng, n, d))


def eight_dimensions(rng: np.random.Generator, n: int, d: int) -> Array:
    """Groups in eight dimensions, whatever `d` is."""
    return _mixture(rng, n, 8, 300, 0.3)


def sparse(rng: np.random.Generator, n: int, d: int) -> Array:
    """Non-negative vectors with few coordinates above zero; frequencies of coordinates follow Zipf's law."""
    frequency = np.minimum(0.5, 0.06 * d / (1 + rng.permutation(d)) ** 0.7 / d**0.3)
    on = rng.random((n, d), dtype=np.float32) < frequency
    on[np.arange(n), rng.integers(d, size=n)] = True
    return _unit(on * np.exp(0.8 * _normal(rng, n, d)))


def factors(rng: np.random.Generator, n: int, d: int) -> Array:
    """Non-negative dense factors, as matrix factorisations give: gamma of shape 0.3, popular items longer."""
    return rng.gamma(0.3, size=(n, d)) * np.exp(0.4 * _normal(rng, n, 1))


def two_tower(rng: np.random.Generator, n: int, d: int) -> _Made:
    """Items and queries of two networks that share part of a code: queries are longer, and never look like an item."""
    half = max(2, d // 2)
    shared = _normal(rng, half, d) / half**0.5
    codes = _mixture(rng, n, half, 100, 0.15)
    items = codes @ shared + 0.25 * _normal(rng, 1, d) / d**0.5 + 0.6 * _normal(rng, n, d) / d**0.5
    items = items * np.exp(0.2 * _normal(rng, n, 1))
    wanted = _unit(0.5 * _normal(rng, SPARE, half) / half**0.5 + codes[rng.integers(n, size=SPARE)])
    users = 1.5 * _unit(np.tanh(2 * wanted @ shared) - 0.5 * _normal(rng, 1, d) / d**0.5)
    lengths = np.exp(0.3 * _normal(rng, SPARE, 1))
    return _Made(items, {STANDARD: users * lengths, "other": _unit(_normal(rng, SPARE, d) / d**0.5 + 0.5 * users)})


def modality_gap(rng: np.random.Generator, n: int, d: int) -> _Made:
    """Images and captions of one space: each in a cone of its own, and a caption is about as near to several images."""
    meaning = _unit(_normal(rng, n, d) * (1 + np.arange(d, dtype=np.float32)) ** -0.3)
    first, second = _unit(_normal(rng, 2, d))
    wanted = meaning[rng.integers(n, size=SPARE)]
    captions = _unit(wanted + _unit(_normal(rng, SPARE, d)) * rng.uniform(0.5, 1.5, (SPARE, 1)))
    return _Made(_unit(meaning + 0.7 * first), {STANDARD: 1.5 * _unit(captions + 0.7 * second)})


def hubs(rng: np.random.Generator, n: int, d: int) -> Array:
    """A hundredth of the items are long and near a common direction: many queries find the same ones."""
    common = _unit(_normal(rng, 1, d))
    items = _unit(_normal(rng, n, d) / d**0.5 + 0.4 * common)
    hub = rng.random(n) < 0.01
    items[hub] = 1.6 * _unit(items[hub] + common)
    return items


def integers(rng: np.random.Generator, n: int, d: int) -> Array:
    """Small integers: counts of twenty groups with rates of their own."""
    rates = rng.gamma(0.5, size=(20, d))
    return rng.poisson(rates[_group(rng, n, 20)])


def ratings(rng: np.random.Generator, n: int, d: int) -> Array:
    """Integers from -2 to 2, mostly zero."""
    return np.clip(np.rint(_mixture(rng, n, d, 200, 0.15) * d**0.5 * 0.8), -2, 2)


def binary(rng: np.random.Generator, n: int, d: int) -> Array:
    """Zeros and ones, with probabilities of fifty groups: about a fifth are ones."""
    chances = rng.beta(0.5, 2.0, size=(50, d)).astype(np.float32)
    return rng.random((n, d), dtype=np.float32) < chances[_group(rng, n, 50)]


def signs(rng: np.random.Generator, n: int, d: int) -> Array:
    """Plus and minus ones, as learned hash codes are."""
    return np.sign(_mixture(rng, n, d, 200, 0.1))


def near_copies(rng: np.random.Generator, n: int, d: int) -> Array:
    """Two thirds are near copies of others, from two to some hundred of each, as catalogues have."""
    originals = _unit(_normal(rng, max(2, n // 3), d))
    popular = (len(originals) * rng.random(n) ** 3).astype(np.int64)
    return _unit(originals[popular] + 0.03 * _normal(rng, n, d) / d**0.5 * rng.exponential(size=(n, 1)))


def spectrum(rng: np.random.Generator, n: int, d: int) -> Array:
    """Variances of the coordinates fall as a power law, as those of trained vectors do."""
    return _unit(_normal(rng, n, d) * (1 + np.arange(d, dtype=np.float32)) ** -0.7)


def cone(rng: np.random.Generator, n: int, d: int) -> Array:
    """All in a narrow cone, as contextual vectors of language models are."""
    return _unit(_mixture(rng, n, d, 500, 0.5 / d**0.5) + 1.5 * _unit(_normal(rng, 1, d)))


def walk(rng: np.random.Generator, n: int, d: int) -> Array:
    """Windows of one long time series: neighbours in time overlap."""
    steps = rng.standard_t(4, size=n + d).cumsum()
    windows = np.lib.stride_tricks.sliding_window_view(steps, d)[:n].astype(np.float32)
    return _unit(windows - windows.mean(axis=1, keepdims=True))[rng.permutation(n)]


def nested(rng: np.random.Generator, n: int, d: int) -> Array:
    """Groups of groups of groups, as product categories are; each level half as wide as the one above."""
    vectors = np.zeros((n, d), np.float32)
    code = np.zeros(n, np.int64)
    for level, branches in enumerate((12, 10, 10)):
        code = code * branches + _group(rng, n, branches)
        vectors += _unit(_normal(rng, code.max() + 1, d))[code] * 0.5**level
    return vectors + 0.1 * _normal(rng, n, d) / d**0.5


def outliers(rng: np.random.Generator, n: int, d: int) -> Array:
    """One dense ball, and one item in two hundred far from everything, in a direction of its own."""
    items = _unit(_unit(_normal(rng, 1, d)) + 0.3 * _normal(rng, n, d) / d**0.5)
    far = rng.random(n) < 0.005
    items[far] = 2.0 * _unit(_normal(rng, int(far.sum()), d))
    return items


def sentences_made(rng: np.random.Generator, n: int, d: int) -> _Made:
    """Means of five to fifteen token vectors of Zipf frequencies, rare ones weighted more; short texts: one or two."""
    topics, words = 60, 8000
    tokens = _normal(rng, words, d) + 1.5 * _normal(rng, topics, d)[rng.integers(topics, size=words)]
    chance = 1 / (3 + np.arange(words)) ** 1.0
    weight = (1e-3 / (1e-3 + chance / chance.sum())).astype(np.float32)
    order = np.argsort(rng.random(words))

    def write(rows: int, least: int, most: int) -> Array:
        total = np.zeros((rows, d), np.float32)
        lengths = rng.integers(least, most + 1, size=rows)
        for place in range(most):
            word = np.searchsorted((chance / chance.sum()).cumsum(), rng.random(rows)).clip(0, words - 1)
            total += (weight[word] * (place < lengths))[:, None] * tokens[order[word]]
        return _unit(total)

    return _Made(write(n, 5, 15), {"short texts": write(SPARE, 1, 2)})


def topics_made(rng: np.random.Generator, n: int, d: int) -> _Made:
    """Latent-semantic vectors of made texts: counts of Zipf words in topics, TF-IDF, SVD.  Short texts: three words."""
    words, topics = 3000, 80
    zipf = 1 / (2 + np.arange(words))
    weights = zipf * rng.gamma(0.3, size=(topics, words))
    cumulated = (weights / weights.sum(axis=1, keepdims=True)).cumsum(axis=1)
    topic = _group(rng, n + SPARE, topics)
    counts = texts.Counts(words)
    for row in range(n + SPARE):
        length = 3 if row >= n else 10 + rng.integers(50)
        counts.add(np.searchsorted(cumulated[topic[row]], rng.random(length)).clip(0, words - 1))
    vectors = counts.latent(d, fit=n)
    return _Made(vectors[:n], {"short texts": vectors[n:]})


def glove(rng: np.random.Generator, n: int, d: int) -> Array | None:
    """English words, GloVe, 100 dimensions."""
    return _some(rng, texts.words(), n)


def sentences(rng: np.random.Generator, n: int, d: int) -> _Made | None:
    """Definitions of WordNet as vectors of a static sentence model, 256 dimensions; short texts: the words defined."""
    found = texts.sentences()
    if found is None:
        return None
    rows = rng.permutation(len(found.glosses))
    own = {"short texts": found.short[rng.permutation(len(found.short))[:SPARE]]}
    return _Made(found.glosses[rows[:n]], own)


def tokens(rng: np.random.Generator, n: int, d: int) -> Array | None:
    """The 32,000 token vectors of that model, with their own lengths."""
    return _some(rng, texts.tokens(), n)


def tokens_unit(rng: np.random.Generator, n: int, d: int) -> Array | None:
    """The same, of length one."""
    found = texts.tokens()
    return None if found is None else _some(rng, _unit(found), n)


def latent_semantic(rng: np.random.Generator, n: int, d: int) -> _Made | None:
    """Latent-semantic vectors of the definitions of WordNet; short texts: the words defined."""
    found = texts.latent_semantic(d)
    if found is None:
        return None
    rows = rng.permutation(len(found.glosses))
    own = {"short texts": found.short[rng.permutation(len(found.short))[:SPARE]]}
    return _Made(found.glosses[rows[:n]], own)


def _some(rng: np.random.Generator, vectors: Array | None, n: int) -> Array | None:
    return None if vectors is None else vectors[rng.permutation(len(vectors))[:n]]


MADE: tuple[Callable[..., Any], ...] = (
    isotropic, clusters, lognormal_lengths, heavy_tails, heavy_tails_unit, low_dimensional, eight_dimensions, sparse,
    factors, two_tower, modality_gap, hubs, integers, ratings, binary, signs, near_copies, spectrum, cone, walk,
    nested, outliers, sentences_made, topics_made,
)  # fmt: skip
"""Families that need nothing but NumPy."""
REAL: tuple[Callable[..., Any], ...] = (glove, sentences, tokens, tokens_unit, latent_semantic)
"""Families of real vectors, downloaded once; left out where they cannot be."""
FAMILIES: dict[str, Callable[..., Any]] = {maker.__name__.replace("_", " "): maker for maker in (*MADE, *REAL)}
WIDE = {"sentences made": 384, "spectrum": 256, "modality gap": 128}
"""Families with more dimensions than the others."""

KINDS = (
    STANDARD,
    "items",
    "means of two",
    "means of ten",
    "noisy",
    "scaled",
    "halved",
    "other",
    "random",
    "parts",
    "analogies",
    "short texts",
)


def open_family(name: str, *, n: int = 50_000, d: int = 64, queries: int = 200, seed: int = 0) -> Family | None:
    """Items and queries of a family; None where its vectors cannot be downloaded.

    Args:
        name: One of FAMILIES.
        n: Number of items, fewer where a real set has fewer.
        d: Dimensions; families in WIDE have more, and real sets their own.
        queries: Number of queries of each kind.
        seed: The same seed gives the same vectors and queries.
    """
    rng = np.random.default_rng([seed, list(FAMILIES).index(name)])
    made = FAMILIES[name](rng, n + SPARE, WIDE.get(name, d))
    if made is None:
        return None
    vectors, own = (made.vectors, made.own) if isinstance(made, _Made) else (made, {})
    vectors = np.ascontiguousarray(vectors, np.float32)
    scale = np.sqrt(np.mean(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)))
    vectors /= np.float32(scale)
    own = {kind: np.asarray(some / np.float32(scale), np.float32) for kind, some in own.items()}
    items, spare = vectors[:-SPARE], vectors[-SPARE:]
    return Family(name, items, _queries(rng, items, spare, own, queries))


def _queries(
    rng: np.random.Generator, items: Array, spare: Array, own: dict[str, Array], count: int
) -> dict[str, Array]:
    """Queries (count, d) of every kind that the family has."""
    d = items.shape[1]
    # Queries of every kind come from the same tower: what a kind changes is applied to the standard ones.
    usual = own.get(STANDARD, spare)

    def some(rows: Array, each: int = 1) -> Array:
        picked = rows[rng.integers(len(rows), size=(count, each))]
        return picked.mean(axis=1)

    lengths = np.linalg.norm(some(usual), axis=1, keepdims=True)
    noise = _normal(rng, count, d) / d**0.5 * lengths
    stretch = np.exp(0.7 * _normal(rng, 1, d))
    a, b, c = some(items), some(items), some(items)
    kinds = {
        STANDARD: usual[rng.permutation(len(usual))[:count]],
        "items": items[rng.permutation(len(items))[:count]],
        "means of two": some(items, 2),
        "means of ten": some(items, 10),
        "noisy": some(items) + 0.5 * noise,
        "scaled": some(usual) * np.exp(0.7 * _normal(rng, count, 1)),
        "halved": some(usual) / 2,
        # The same vectors seen through another lens: stretched coordinates and a common offset.
        "other": _unit(some(usual) * stretch + 0.3 * noise[:1]) * lengths,
        "random": _unit(_normal(rng, count, d)) * lengths,
        "parts": _unit(some(usual) * (rng.random((count, d)) < 0.5)) * lengths,
        "analogies": a - b + c,
    }
    kinds |= {kind: some[:count] for kind, some in own.items()}
    return {kind: np.ascontiguousarray(kinds[kind], np.float32) for kind in KINDS if kind in kinds}
