"""Every sampler draws from the law that its log_q tells."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from softindex import InputError, MethodError
from softindex.train import (
    InBatchSampler,
    LearnableMIDXSampler,
    LogUniformSampler,
    LSHSampler,
    MIDXSampler,
    NotRefreshedError,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    UnigramSampler,
)

N, D, B = 300, 7, 4


def midx(n=N, **options):
    return MIDXSampler(n, **({"codewords": 6} | options))


MAKERS = {
    "uniform": UniformSampler,
    "log-uniform": LogUniformSampler,
    "unigram": UnigramSampler,
    "unigram, power": lambda n: UnigramSampler(n, power=0.75),
    "sphere": lambda n: SphereSampler(n, alpha=3.0),
    "lsh": lambda n: LSHSampler(n, tables=4, bits=3),
    "two-level": lambda n: TwoLevelSampler(n, method="s-2ls"),
    "two-level, dispersion": lambda n: TwoLevelSampler(n, method="sd-2ls"),
    "two-level, probes": lambda n: TwoLevelSampler(n, method="sd-2ls", probes=3),
    **{
        f"midx {quantizer} {residual} {mix}": lambda n, quantizer=quantizer, residual=residual, mix=mix: midx(
            n, quantizer=quantizer, residual=residual, unigram_mix=mix
        )
        for quantizer in ("rq", "pq")
        for residual in ("uniform", "weighted", "exact", "oracle")
        for mix in (0.0, 0.2)
    },
    "midx, many codewords": lambda n: midx(n, codewords=40),
    "learnable rq": lambda n: LearnableMIDXSampler(n, D, codewords=6),
    "learnable pq": lambda n: LearnableMIDXSampler(n, D, codewords=6, quantizer="pq", residual="weighted"),
}
TAKES_BIAS = ("midx", "two-level")


def classes(n=N, d=D, seed=0):
    random = torch.Generator().manual_seed(seed)
    items = torch.randn(n, d, generator=random)
    frequencies = torch.rand(n, generator=random) ** 4 * 100
    bias = torch.randn(n, generator=random)
    queries = torch.randn(B, d, generator=random)
    return items, frequencies, bias, queries


def refreshed(name, *, with_bias=False):
    sampler = MAKERS[name](N)
    items, frequencies, bias, queries = classes()
    sampler.refresh(items, frequencies=frequencies, queries=queries, bias=bias if with_bias else None)
    return sampler, queries


@pytest.mark.parametrize("name", MAKERS)
def test_log_q_sums_to_one(name):
    sampler, queries = refreshed(name)
    log_q = sampler.log_q(queries, torch.arange(N))
    assert log_q.shape == (B, N)
    torch.testing.assert_close(log_q.double().exp().sum(1), torch.ones(B, dtype=torch.float64), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", MAKERS)
def test_draws_are_as_frequent_as_log_q_says(name):
    sampler, queries = refreshed(name)
    draws = 30_000
    drawn = sampler.sample(queries, draws, generator=torch.Generator().manual_seed(1))
    assert drawn.ids.shape == drawn.log_q.shape == (B, draws)
    log_q = sampler.log_q(queries, torch.arange(N))
    torch.testing.assert_close(drawn.log_q, log_q.gather(1, drawn.ids), atol=2e-5, rtol=0)
    for row in range(B):
        counts = torch.bincount(drawn.ids[row], minlength=N).double().numpy()
        assert fits(counts, log_q[row].double().exp().numpy() * draws)


def fits(counts, expected):
    """Chi-square at one in a hundred thousand, classes that are hardly expected taken together."""
    rare = expected < 8
    merged = np.append(expected[~rare], expected[rare].sum())
    seen = np.append(counts[~rare], counts[rare].sum())
    if merged[-1] < 8:
        merged, seen = merged[:-1], seen[:-1]
        merged = merged * seen.sum() / merged.sum()
    return len(merged) < 2 or stats.chisquare(seen, merged * seen.sum() / merged.sum()).pvalue > 1e-5


def test_a_wrong_law_does_not_fit():
    counts = np.random.default_rng(0).multinomial(30_000, np.full(300, 1 / 300))
    assert fits(counts, np.full(300, 100.0))
    assert not fits(counts, np.linspace(80, 120, 300))


@pytest.mark.parametrize("name", MAKERS)
def test_shared_draws_are_from_the_mean_of_the_laws(name):
    sampler, queries = refreshed(name)
    draws = 30_000
    drawn = sampler.sample(queries, draws, shared=True, generator=torch.Generator().manual_seed(2))
    assert drawn.ids.shape == drawn.log_q.shape == (draws,)
    log_q = sampler.log_q(queries, torch.arange(N), shared=True)
    mixture = torch.logsumexp(sampler.log_q(queries, torch.arange(N)), 0) - math.log(B)
    torch.testing.assert_close(log_q, mixture, atol=2e-5, rtol=0)
    torch.testing.assert_close(drawn.log_q, log_q[drawn.ids], atol=2e-5, rtol=0)
    assert fits(torch.bincount(drawn.ids, minlength=N).double().numpy(), log_q.double().exp().numpy() * draws)


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_state_gives_the_same_law(name):
    sampler, queries = refreshed(name)
    other = MAKERS[name](N)
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.log_q(queries, torch.arange(N)), sampler.log_q(queries, torch.arange(N)))
    first, second = (one.sample(queries, 50, generator=torch.Generator().manual_seed(3)) for one in (sampler, other))
    assert torch.equal(first.ids, second.ids)
    wrong = MAKERS[name](N + 1)
    with pytest.raises(InputError, match="classes"):
        wrong.load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("name", MAKERS)
def test_casting_the_module_does_not_touch_the_law(name):
    sampler, queries = refreshed(name)
    if isinstance(sampler, LearnableMIDXSampler):
        pytest.skip("its codebooks are parameters, and follow the model's dtype")
    before = sampler.log_q(queries, torch.arange(N))
    assert torch.equal(sampler.half().log_q(queries, torch.arange(N)), before)


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith(TAKES_BIAS)])
def test_a_bias_changes_the_law_towards_the_softmax(name):
    items, _, bias, queries = classes()
    log_p = torch.log_softmax(queries @ items.T + 2 * bias, 1)
    sampler = MAKERS[name](N)
    _, frequencies, _, _ = classes()
    sampler.refresh(items, frequencies=frequencies)
    without = divergence(log_p, sampler.log_q(queries, torch.arange(N)))
    sampler.refresh(items, frequencies=frequencies, bias=2 * bias)
    assert divergence(log_p, sampler.log_q(queries, torch.arange(N))) < 0.9 * without


def divergence(log_p, log_q):
    return float((log_p.exp() * (log_p - log_q)).sum(1).mean())


def test_the_weighted_law_has_the_bias_exactly():
    items, _, bias, queries = classes()
    plain, biased = midx(residual="weighted"), midx(residual="weighted")
    plain.refresh(items)
    biased.refresh(items, bias=bias)
    difference = biased.log_q(queries, torch.arange(N)) - plain.log_q(queries, torch.arange(N)) - bias
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantizer", ["rq", "pq"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_oracle_is_the_softmax(quantizer, with_bias):
    items, _, bias, queries = classes()
    sampler = midx(quantizer=quantizer, residual="oracle")
    sampler.refresh(items, bias=bias if with_bias else None)
    log_p = torch.log_softmax(queries @ items.T + (bias if with_bias else 0.0), 1)
    torch.testing.assert_close(sampler.log_q(queries, torch.arange(N)), log_p, atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_the_uniform_law_is_the_softmax_of_the_codewords(quantizer):
    items, _, _, queries = classes()
    sampler = midx(quantizer=quantizer)
    sampler.refresh(items)
    tables = sampler.tables
    near = tables["first"][tables["bucket"] // 6] + tables["second"][tables["bucket"] % 6]
    log_q = torch.log_softmax(queries @ near.T, 1)
    torch.testing.assert_close(sampler.log_q(queries, torch.arange(N)), log_q, atol=1e-5, rtol=0)
    # Theorem 5 of the paper: no log-probability is off by more than twice the largest product with a residual.
    log_p = torch.log_softmax(queries @ items.T, 1)
    residual = (queries @ (items - near).T).abs().amax(1)
    assert bool(((log_p - log_q).abs().amax(1) <= 2 * residual + 1e-5).all())
    assert bool(((log_p.exp() * (log_p - log_q)).sum(1) <= 2 * residual + 1e-5).all())


def test_a_product_quantizer_splits_the_coordinates():
    items, _, _, _ = classes()
    sampler = midx(quantizer="pq")
    sampler.refresh(items)
    assert bool((sampler.tables["first"][:, 4:] == 0).all())
    assert bool((sampler.tables["second"][:, :4] == 0).all())


def skewed(n=2000, d=16):
    """Classes whose frequency shows in the vectors, as in a trained model, and queries that see few directions."""
    random = torch.Generator().manual_seed(5)
    scale = torch.linspace(2.0, 0.05, d)
    queries = torch.randn(256, d, generator=random) * scale
    queries[:, 0] = 2.0
    items = torch.randn(n, d, generator=random)
    items[:, 0] = -torch.log1p(torch.arange(n)) / 2 + 0.1 * items[:, 0]
    frequencies = torch.softmax(queries @ items.T, 1).mean(0) * 1e6
    return items, frequencies, queries


def test_frequencies_queries_and_weights_each_come_nearer_to_the_softmax():
    items, frequencies, queries = skewed()
    log_p = torch.log_softmax(queries @ items.T, 1)
    found = []
    for residual, given in (
        ("uniform", {}),
        ("uniform", {"frequencies": frequencies}),
        ("uniform", {"frequencies": frequencies, "queries": queries}),
        ("weighted", {"frequencies": frequencies, "queries": queries}),
    ):
        sampler = MIDXSampler(2000, codewords=16, residual=residual)
        sampler.refresh(items, **given)
        found.append(divergence(log_p, sampler.log_q(queries, torch.arange(2000))))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 3


def test_calibrated_weights_draw_each_class_as_often_as_the_softmax():
    items, frequencies, queries = skewed()
    sampler = MIDXSampler(2000, codewords=16, residual="weighted")
    sampler.refresh(items, frequencies=frequencies, queries=queries)
    drawn = sampler.log_q(queries, torch.arange(2000)).double().exp().mean(0)
    wanted = torch.softmax((queries @ items.T).double(), 1).mean(0)
    assert float((drawn - wanted).abs().sum()) / 2 < 0.01


@pytest.mark.parametrize(
    ("n", "d", "codewords"),
    [(1, 5, 8), (2, 1, 8), (3, 3, 64), (50, 1, 4), (50, 2, 200), (7, 7, 7)],
)
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
@pytest.mark.parametrize("residual", ["uniform", "weighted", "exact", "oracle"])
def test_few_classes_many_codewords_odd_dimensions(n, d, codewords, quantizer, residual):
    items, frequencies, _, queries = classes(n, d)
    sampler = MIDXSampler(n, codewords=codewords, quantizer=quantizer, residual=residual)
    sampler.refresh(items, frequencies=frequencies, queries=queries)
    log_q = sampler.log_q(queries, torch.arange(n)).double()
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(B, dtype=torch.float64), atol=2e-6, rtol=0)
    drawn = sampler.sample(queries, 2000, generator=torch.Generator().manual_seed(0))
    for row in range(B):
        counts = torch.bincount(drawn.ids[row], minlength=n).double().numpy()
        assert fits(counts, log_q[row].exp().numpy() * 2000)


@pytest.mark.parametrize("residual", ["uniform", "weighted", "exact", "oracle"])
@pytest.mark.parametrize("scale", [1e-6, 300.0, 3e4])
def test_tiny_and_huge_logits(residual, scale):
    items, frequencies, _, queries = classes()
    sampler = midx(residual=residual)
    sampler.refresh(items, frequencies=frequencies, queries=queries * scale)
    log_q = sampler.log_q(queries * scale, torch.arange(N)).double()
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(B, dtype=torch.float64), atol=1e-3, rtol=0)
    drawn = sampler.sample(queries * scale, 100)
    assert bool(torch.isfinite(drawn.log_q).all())


def test_equal_classes_are_drawn_alike():
    sampler = midx(50)
    sampler.refresh(torch.ones(50, D))
    log_q = sampler.log_q(torch.ones(1, D), torch.arange(50))
    torch.testing.assert_close(log_q, torch.full((1, 50), -math.log(50)), atol=1e-5, rtol=0)


def test_a_refresh_starts_from_the_last_codebooks():
    items, _, _, _ = classes()
    sampler = midx()
    sampler.refresh(items)
    codes = sampler.tables["bucket"].clone()
    sampler.refresh(items + 1e-4)
    assert float((sampler.tables["bucket"] == codes).float().mean()) > 0.6


def test_a_stale_index_weighs_its_draws_rightly():
    items, _, _, queries = classes()
    sampler = midx()
    sampler.refresh(items)
    moved = items + 0.5 * torch.randn(N, D, generator=torch.Generator().manual_seed(9))
    drawn = sampler.sample(queries, 200_000, generator=torch.Generator().manual_seed(4))
    logits = queries @ moved.T
    estimate = torch.logsumexp(logits.gather(1, drawn.ids) - drawn.log_q, 1) - math.log(200_000)
    torch.testing.assert_close(estimate, torch.logsumexp(logits, 1), atol=0.03, rtol=0)


def test_more_than_two_to_the_24_classes():
    n = 2**24 + 1000
    for sampler in (UniformSampler(n), LogUniformSampler(n)):
        drawn = sampler.sample(torch.zeros(1, 1), 200_000)
        assert int(drawn.ids.max()) < n
        assert bool((drawn.ids % 2 == 1).any())
    assert int(UniformSampler(n).sample(torch.zeros(1, 1), 400_000).ids.max()) > 2**24 - 1000
    last = LogUniformSampler(n).log_q(torch.zeros(1, 1), torch.tensor([n - 1]))
    assert float(last) == pytest.approx(math.log(math.log1p(1 / n) / math.log(n + 1)), abs=1e-5)
    frequencies = torch.ones(n)
    frequencies[-1] = n
    unigram = UnigramSampler(n)
    unigram.refresh(frequencies=frequencies)
    drawn = unigram.sample(torch.zeros(1, 1), 1000)
    assert 400 < int((drawn.ids == n - 1).sum()) < 600


def test_targets_of_the_batch_are_drawn_as_often_as_they_occur():
    random = torch.Generator().manual_seed(0)
    frequencies = torch.rand(20, generator=random) + 0.05
    sampler = InBatchSampler(20)
    sampler.refresh(frequencies=frequencies)
    counts, shared = torch.zeros(20), torch.zeros(20)
    law = sampler.log_q(torch.zeros(1, 1), torch.arange(20))[0].exp()
    torch.testing.assert_close(law, frequencies / frequencies.sum())
    for _ in range(500):
        positives = torch.multinomial(frequencies, 16, replacement=True, generator=random)
        drawn = sampler.sample(torch.zeros(16, 1), 4, positives=positives, generator=random)
        # One row of each batch: draws of several rows share targets and are no independent ones.
        counts += torch.bincount(drawn.ids[0], minlength=20)
        together = sampler.sample(torch.zeros(16, 1), 16, shared=True, positives=positives, generator=random)
        shared += torch.bincount(together.ids, minlength=20)
    assert fits(counts.double().numpy(), (law * counts.sum()).double().numpy())
    assert fits(shared.double().numpy(), (law * shared.sum()).double().numpy())


def test_a_class_never_seen_can_still_be_drawn():
    sampler = UnigramSampler(3)
    sampler.refresh(frequencies=torch.tensor([0.0, 5.0, 2.0]))
    torch.testing.assert_close(sampler.log_q(torch.zeros(1, 1), torch.arange(3))[0].exp(), torch.tensor([2, 5, 2]) / 9)


def test_autocast_does_not_round_the_law():
    sampler, queries = refreshed("midx rq uniform 0.0")
    before = sampler.log_q(queries, torch.arange(N))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sampler.log_q(queries, torch.arange(N)), before)


@pytest.mark.parametrize("name", [name for name in MAKERS if "uniform" not in name.split() or "midx" in name])
def test_use_before_refresh(name):
    sampler = MAKERS[name](N)
    if not sampler.needs_refresh:
        return
    with pytest.raises(NotRefreshedError, match="refresh"):
        sampler.sample(torch.zeros(1, D), 3)
    with pytest.raises(NotRefreshedError, match="refresh"):
        sampler.log_q(torch.zeros(1, D), torch.arange(3))


@pytest.mark.parametrize("name", MAKERS)
def test_nan_at_refresh_leaves_the_old_tables_in_use(name):
    sampler, queries = refreshed(name)
    before = sampler.log_q(queries, torch.arange(N))
    items, frequencies, _, _ = classes()
    items[17, 3] = math.nan
    with pytest.raises(InputError, match="row 17"):
        sampler.refresh(items, frequencies=frequencies)
    assert torch.equal(sampler.log_q(queries, torch.arange(N)), before)


def test_wrong_input_is_told_in_a_sentence():
    sampler, queries = refreshed("midx rq uniform 0.0")
    items, frequencies, bias, _ = classes()
    for call, words in (
        (lambda: sampler.sample(queries, 0), "m is 0"),
        (lambda: sampler.sample(queries[0], 3), r"shape \(7,\)"),
        (lambda: sampler.sample(queries[:, :3], 3), "3 dimensions"),
        (lambda: sampler.sample(queries.long(), 3), "floating-point"),
        (lambda: sampler.log_q(queries, torch.tensor([N])), f"class {N}"),
        (lambda: sampler.log_q(queries, torch.tensor([-1])), "class -1"),
        (lambda: sampler.log_q(queries, torch.tensor([1.0])), "integers"),
        (lambda: sampler.log_q(queries, torch.zeros(B + 1, 2, dtype=torch.long)), "expected"),
        (lambda: sampler.log_q(queries, torch.zeros(B, 2, dtype=torch.long), shared=True), r"\(j,\)"),
        (lambda: sampler.sample(queries.to("meta"), 3), "meta"),
        (lambda: sampler.refresh(items[:-1]), "299 items"),
        (lambda: sampler.refresh(), "vectors"),
        (lambda: sampler.refresh(items, queries=queries[:, :2]), "2 dimensions"),
        (lambda: sampler.refresh(items, frequencies=frequencies[:-1]), "frequencies"),
        (lambda: sampler.refresh(items, frequencies=-frequencies), "negative"),
        (lambda: sampler.refresh(items, frequencies=0 * frequencies), "all 0"),
        (lambda: sampler.refresh(items, bias=bias / 0), "infinity"),
        (lambda: UnigramSampler(N).refresh(items), "frequenc"),
        (lambda: UnigramSampler(N, power=math.nan), "power"),
        (lambda: InBatchSampler(N).refresh(items), "frequenc"),
        (lambda: MIDXSampler(0), "num_items"),
        (lambda: MIDXSampler(N, codewords=0), "codewords"),
        (lambda: MIDXSampler(N, unigram_mix=1.0), "unigram_mix"),
        (lambda: midx(unigram_mix=0.1).refresh(items), "frequenc"),
        (lambda: LSHSampler(N, bits=40), "bits"),
        (lambda: SphereSampler(N, alpha=-1), "alpha"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    for call, words in (
        (lambda: MIDXSampler(N, quantizer="opq"), "rq, pq"),
        (lambda: MIDXSampler(N, residual="none"), "uniform, weighted"),
        (lambda: TwoLevelSampler(N, method="exact"), "s-2ls"),
        (lambda: LearnableMIDXSampler(N, D, residual="exact"), "weighted"),
    ):
        with pytest.raises(MethodError, match=words):
            call()


def test_targets_are_needed_to_draw_from_them():
    sampler = InBatchSampler(5)
    sampler.refresh(frequencies=torch.ones(5))
    for positives, words in (
        (None, "positives"),
        (torch.tensor([1]), "shape"),
        (torch.tensor([1, 5]), "class 5"),
    ):
        with pytest.raises(InputError, match=words):
            sampler.sample(torch.zeros(2, 1), 1, positives=positives)
    with pytest.raises(InputError, match="one query"):
        sampler.sample(torch.zeros(1, 1), 1, positives=torch.tensor([1]))


def test_a_state_of_other_arguments_is_refused():
    sampler, _ = refreshed("midx rq uniform 0.0")
    for other in (midx(codewords=7), midx(residual="exact"), midx(unigram_mix=0.1)):
        with pytest.raises(InputError, match="same arguments"):
            other.load_state_dict(sampler.state_dict())
        assert other.tables is None
