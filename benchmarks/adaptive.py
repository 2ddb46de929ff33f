"""AdaptiveSoftmax against a plain product: the clock, multiplications, and how often the answer is right."""

from functools import partial

import numpy as np

from benchmarks.data import glove
from benchmarks.tables import Table
from softindex import AdaptiveSoftmax
from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import encode
from softindex.evaluate.timing import take_turns
from softindex.kernels.reference import unpack_nibbles

EPSILON = 0.3
KINDS = ("deterministic", "pac", "calibrated", "exact")
CONFIDENCES = (0.9, 0.95, 0.99)


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


def ahead(d, seed=0):
    """100 rows of variance 1 / d, a query of length sqrt(d), one row 12 ahead: clear, but pac has nothing to save."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((100, d), dtype=np.float32) / np.float32(np.sqrt(d))
    query = rng.standard_normal(d, dtype=np.float32)
    query *= np.float32(np.sqrt(d) / np.linalg.norm(query))
    scores = weights @ query
    weights[0] += (scores[1:].max() + 12 - scores[0]) / np.float32(d) * query
    return weights, lambda rng: query * np.float32(1 + 1e-3 * rng.random())


def several(n, d, count, seed=0):
    """The same rows; the query leans to several of them equally."""
    weights = isotropic(n, d, seed)[0]

    def draw(rng):
        chosen = rng.choice(n, count, replace=False)
        return 15 * weights[chosen].sum(axis=0) + np.float32(0.15) * rng.standard_normal(d, dtype=np.float32)

    return weights, draw


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
        for d, count in ((10_000, 100), (100_000, 100), (1_000_000, 20)):
            yield f"{name}, 100 x {d:,}", make(d), count
    for d in (10_000, 100_000):
        yield f"one 12 ahead, 100 x {d:,}", ahead(d), 40
    yield "planted, 30,000 x 4,096", planted(30_000, 4096), 40
    yield "isotropic noise, 30,000 x 4,096", isotropic(30_000, 4096), 40
    found = words()
    if found is not None:
        yield "word vectors, 341,479 x 100", found, 40


def best_of(soft, query, k=1, **options):
    """The k best classes, on one thread."""
    return soft.top_k(query, k, temperature=1.0, epsilon=EPSILON, threads=1, **options)


def clock(name, weights, make, count):
    """One row per guarantee."""
    rng = np.random.default_rng(1)
    soft = AdaptiveSoftmax(weights)
    soft.calibrate(np.stack([make(rng) for _ in range(80)]))
    queries = [make(rng) for _ in range(count)]
    peer = plain(weights)
    functions = {"NumPy": peer}
    for kind in KINDS:
        functions[kind] = partial(best_of, soft, guarantee=kind)
    take_turns(functions, queries[:2])
    seconds = {key: float(np.median(values)) for key, values in take_turns(functions, queries, stretch=5).items()}
    n, d = weights.shape
    rows = [[name, "NumPy", f"{seconds['NumPy'] * 1e3:.3g}", "1.0x", f"{d:,}", "100%", "", ""]]
    for kind in KINDS:
        found = [best_of(soft, query, guarantee=kind) for query in queries]
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
    """How often all k are right and all probabilities within epsilon, for each k and confidence."""
    rows = []
    for k in (1, 5, 50):
        row = [name, str(k)]
        for confidence in CONFIDENCES:
            hits, spent, fell = 0, 0.0, 0
            for soft, weights, query, chances in soft_of(queries):
                found = best_of(soft, query, k, guarantee="pac", confidence=confidence)
                best = np.argpartition(chances, len(chances) - k)[len(chances) - k :]
                right = set(found.ids.tolist()) == set(best.tolist())
                near = right and (np.abs(np.exp(found.log_prob) / chances[found.ids] - 1) <= EPSILON).all()
                hits, spent = hits + bool(near), spent + found.multiplications / weights.size
                fell += found.guarantee == "exact"
            row.append(f"{hits / queries:.1%} ({queries / spent:.1f}x, {fell / queries:.0%})")
        rows.append(row)
    return rows


def trials(make, count, seeds=8):
    """Queries with the truth beside them, over several matrices and orders of coordinates."""
    made = []
    for seed in range(seeds):
        weights, draw = make(seed)
        soft, rng = AdaptiveSoftmax(weights, seed=seed), np.random.default_rng(100 + seed)
        for _ in range(count // seeds):
            # A small change makes every query a different one, with its own order.
            query = draw(rng) * np.float32(1 + 1e-3 * rng.random())
            logits = weights.astype(np.float64) @ query.astype(np.float64)
            made.append((soft, weights, query, np.exp(logits - np.logaddexp.reduce(logits))))
    return lambda _: made


MATRICES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy columns": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 4, shape[1]),
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    "signs": lambda rng, shape: np.sign(rng.standard_normal(shape)),
    "huge": lambda rng, shape: 1e13 * rng.standard_normal(shape),
}


def certificate(seeds=4, n=50, count=40):
    """How often a score is outside its radius; half of the queries point along what a row's code loses."""
    rows = []
    for kind, make in MATRICES.items():
        trials, violations, closest = 0, 0, 0.0
        for seed in range(seeds):
            for d in (7, 64, 333):
                rng = np.random.default_rng([seed, d])
                weights = make(rng, (n, d)).astype(np.float32)
                screen = encode(Rows(weights))
                for level in screen.levels:
                    queries = rng.standard_normal((count, d))
                    queries[::2] = lost_directions(screen, level, weights)[: count // 2]
                    queries = queries.astype(np.float32).astype(np.float64)
                    for query, scores in zip(queries, screen.score(level, queries, 1), strict=True):
                        truth = weights.astype(np.longdouble) @ query.astype(np.longdouble)
                        away = np.abs(truth - scores.values)
                        trials, violations = trials + n, violations + int((away > scores.radii).sum())
                        closest = max(closest, float((away / np.maximum(scores.radii, 1e-300)).max()))
        rows.append([kind, f"{trials:,}", str(violations), f"{closest:.3f}"])
    return rows


def lost_directions(screen, level, weights):
    """(n, d) the worst query for each row's code: along what the code loses."""
    codes = level.codes.astype(np.float64)
    if level.bits == 4:
        codes = unpack_nibbles(level.codes)[:, : weights.shape[1]] - 8.0
    return (weights / screen.columns - level.scales[:, None] * codes) / screen.columns


def run(options):
    """The clock on every set, the success of pac, and trials of the certificate."""
    timed = [row for name, (weights, make), count in sets() for row in clock(name, weights, make, count)]
    count, rates = 800, []
    for name, make in (
        ("toy, 100 x 10,000", lambda seed: toy(10_000, seed)),
        ("regular, 100 x 20,000", lambda seed: regular(20_000, seed)),
        ("planted, 2,000 x 4,096", lambda seed: planted(2000, 4096, seed)),
        ("5 planted, 2,000 x 16,384", lambda seed: several(2000, 16_384, 5, seed)),
        ("50 planted, 500 x 65,536", lambda seed: several(500, 65_536, 50, seed)),
        ("isotropic noise, 500 x 1,024", lambda seed: isotropic(500, 1024, seed)),
    ):
        rates.extend(success(name, make, count, trials(make, count)))
    return [
        Table(
            f"The best class and its probability within {EPSILON:.0%}: milliseconds (medians, one thread), "
            "against NumPy, multiplications per row, bytes read relative to the weights, how often the best was right, "
            "and the guarantees of the answers",
            ["set", "guarantee", "ms", "against NumPy", "multiplications", "bytes", "right", "given"],
            timed,
        ),
        Table(
            f"pac: how often all k were right with probabilities within {EPSILON:.0%}, of {count} queries, 8 matrices "
            "and seeds (in brackets how many times fewer multiplications, and how often everything was scored)",
            ["set", "k", *(f"confidence {confidence:g}" for confidence in CONFIDENCES)],
            rates,
        ),
        Table(
            "The certificate of the screens in four and eight bits: trials, scores outside their radius, and the "
            "largest error as a fraction of its radius",
            ["weights", "trials", "violations", "closest"],
            certificate(),
        ),
    ]
