"""AdaptiveSoftmax against a plain product: the clock, multiplications, and how often the answer is right."""

import numpy as np

from benchmarks.data import glove
from softindex import AdaptiveSoftmax
from softindex.evaluate.tables import Table
from softindex.evaluate.timing import take_turns

EPSILON = 0.3
KINDS = ("deterministic", "pac", "calibrated", "exact")


def toy(d, seed=0):
    """The published set: noise of variance 1 / (10 d^2), one row above the others by 1 / d, a query of ones."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((100, d), dtype=np.float32) / np.float32(np.sqrt(10) * d)).astype(np.float32)
    weights[0] += np.float32(1 / d)
    return weights, lambda rng: np.ones(d, np.float32)


def regular(d, seed=0):
    """The published set: noise of variance 1 / d^2, and the signs of the first row as a query."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((100, d), dtype=np.float32) / np.float32(d)).astype(np.float32)
    return weights, lambda rng: np.sign(weights[0])


def planted(n, d, seed=0):
    """Isotropic rows of about unit length; a query leans to one of them."""
    weights = isotropic(n, d, seed)[0]
    return (
        weights,
        lambda rng: 15 * weights[rng.integers(n)] + np.float32(0.15) * rng.standard_normal(d, dtype=np.float32),
    )


def isotropic(n, d, seed=0):
    """The same rows; the query is noise, and nothing can be saved."""
    weights = np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32) / np.float32(np.sqrt(d))
    return weights, lambda rng: rng.standard_normal(d, dtype=np.float32)


def words():
    """Word vectors as an output layer: the query is a word with some noise."""
    vectors = glove()
    if vectors is None:
        return None
    scale = np.float32(1 / 0.07)
    return (
        vectors,
        lambda rng: (
            scale
            * (vectors[rng.integers(len(vectors))] + np.float32(0.03) * rng.standard_normal(100, dtype=np.float32))
        ),
    )


def plain(weights):
    """What a user writes: a product, exponentials, their sum, the best k."""

    def best(query, k=1):
        logits = weights @ query
        logits -= logits.max()
        np.exp(logits, out=logits)
        logits /= logits.sum()
        found = np.argpartition(logits, len(logits) - k)[len(logits) - k :]
        return found[np.argsort(-logits[found])]

    return best


def sets():
    """Name, weights with a maker of queries, and how many queries are timed."""
    for name, make in (("toy", toy), ("regular", regular)):
        for d in (10_000, 100_000):
            yield f"{name}, 100 x {d:,}", make(d), 100
    yield "planted, 30,000 x 4,096", planted(30_000, 4096), 40
    yield "isotropic noise, 30,000 x 4,096", isotropic(30_000, 4096), 40
    found = words()
    if found is not None:
        yield "word vectors, 341,479 x 100", found, 40


def clock(name, weights, make, count):
    """One row per guarantee."""
    rng = np.random.default_rng(1)
    soft = AdaptiveSoftmax(weights)
    soft.calibrate(np.stack([make(rng) for _ in range(80)]))
    queries = [make(rng) for _ in range(count)]
    peer = plain(weights)
    functions = {"NumPy": peer}
    for kind in KINDS:
        functions[kind] = lambda query, kind=kind: soft.top_k(query, guarantee=kind, epsilon=EPSILON, threads=1)
    take_turns(functions, queries[:2])
    seconds = {key: float(np.median(values)) for key, values in take_turns(functions, queries, stretch=5).items()}
    n, d = weights.shape
    rows = [[name, "NumPy", f"{seconds['NumPy'] * 1e3:.3g}", "1.0x", f"{d:,}", "100%", "", ""]]
    for kind in KINDS:
        found = [soft.top_k(query, guarantee=kind, epsilon=EPSILON, threads=1) for query in queries]
        truth = [peer(query)[0] for query in queries]
        right = np.mean([int(one.ids[0]) == best for one, best in zip(found, truth, strict=True)])
        given = ", ".join(sorted({one.guarantee for one in found}))
        rows.append(
            [
                name,
                kind,
                f"{seconds[kind] * 1e3:.3g}",
                f"{seconds['NumPy'] / seconds[kind]:.2f}x",
                f"{np.mean([one.multiplications for one in found]) / n:,.0f}",
                f"{np.mean([one.bytes_read for one in found]) / (4 * n * d):.0%}",
                f"{right:.0%}",
                given,
            ]
        )
    return rows


def success(name, make, queries, soft_of):
    """How often all k are right and all probabilities within epsilon, for each k and delta."""
    rows = []
    for k in (1, 5, 50):
        row = [name, str(k)]
        for delta in (0.1, 0.05, 0.01):
            hits, spent, fell = 0, 0.0, 0
            for soft, weights, query, chances in soft_of(queries):
                found = soft.top_k(query, k, guarantee="pac", epsilon=EPSILON, delta=delta, threads=1)
                best = np.argpartition(chances, len(chances) - k)[len(chances) - k :]
                right = set(found.ids.tolist()) == set(best.tolist())
                near = right and (np.abs(found.probabilities / chances[found.ids] - 1) <= EPSILON).all()
                hits, spent = hits + bool(near), spent + found.multiplications / weights.size
                fell += found.guarantee == "exact"
            row.append(f"{hits / queries:.1%} ({queries / spent:.1f}x, {fell / queries:.0%})")
        rows.append(row)
    return rows


def trials(make, count, seeds=8):
    """Queries with the truth beside them, over several matrices and orders of coordinates."""
    held = []
    for seed in range(seeds):
        weights, draw = make(seed)
        soft, rng = AdaptiveSoftmax(weights, seed=seed), np.random.default_rng(100 + seed)
        for _ in range(count // seeds):
            # Something small makes every query another one, with an order of its own.
            query = draw(rng) * np.float32(1 + 1e-3 * rng.random())
            logits = weights.astype(np.float64) @ query.astype(np.float64)
            held.append((soft, weights, query, np.exp(logits - np.logaddexp.reduce(logits))))
    return lambda _: held


def run(options):
    """The clock on every set, and the success of pac."""
    timed = [row for name, (weights, make), count in sets() for row in clock(name, weights, make, count)]
    count, rates = 800, []
    for name, make in (
        ("toy, 100 x 10,000", lambda seed: toy(10_000, seed)),
        ("regular, 100 x 20,000", lambda seed: regular(20_000, seed)),
        ("planted, 2,000 x 4,096", lambda seed: planted(2000, 4096, seed)),
        ("isotropic noise, 500 x 1,024", lambda seed: isotropic(500, 1024, seed)),
    ):
        rates.extend(success(name, make, count, trials(make, count)))
    return [
        Table(
            f"The best class and its probability within {EPSILON:.0%}: milliseconds (medians, one thread), "
            "against NumPy, multiplications a row, bytes read of those of the weights, how often the best was right, "
            "and the guarantees given",
            ["set", "asked for", "ms", "against NumPy", "multiplications", "bytes", "right", "given"],
            timed,
        ),
        Table(
            f"pac: how often all k were right with probabilities within {EPSILON:.0%}, of {count} queries, 8 matrices "
            "and seeds (in brackets how many times fewer multiplications, and how often everything was scored)",
            ["set", "k", "delta = 0.1", "delta = 0.05", "delta = 0.01"],
            rates,
        ),
    ]
