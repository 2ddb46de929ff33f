"""The random-feature sampler draws from the law it reports, and approaches the softmax with more features."""

import torch
from scipy import stats

from experiments.harness.memory import peak_memory
from experiments.harness.random_features import RandomFeatureSampler


def made(features):
    random = torch.Generator().manual_seed(0)
    items, queries = 0.5 * torch.randn(60, 6, generator=random), torch.randn(3, 6, generator=random)
    sampler = RandomFeatureSampler(60, features=features)
    sampler.refresh(items)
    return sampler, items, queries


def test_log_q_sums_to_one_and_draws_fit_it():
    sampler, _, queries = made(16)
    q = sampler.log_q(queries, torch.arange(60)).double().exp()
    torch.testing.assert_close(q.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)
    drawn = sampler.sample(queries, 20_000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn.log_q, sampler.log_q(queries, drawn.ids))
    for row in range(3):
        counts = torch.bincount(drawn.ids[row], minlength=60).numpy()
        # A false alarm in a hundred thousand.
        assert stats.chisquare(counts, (q[row] / q[row].sum()).numpy() * 20_000).pvalue > 1e-5


def test_more_features_come_closer_to_the_softmax():
    distances = []
    for features in (4, 64, 4096):
        sampler, items, queries = made(features)
        log_p = torch.log_softmax(queries @ items.T, 1)
        distances.append(float((log_p.exp() * (log_p - sampler.log_q(queries, torch.arange(60)))).sum(1).mean()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.1 * distances[0]


def test_the_peak_of_memory_counts_what_is_alive_at_once():
    def call():
        for _ in range(3):
            torch.zeros(1000, 1000).sum()

    assert 4_000_000 <= peak_memory(call) < 4_100_000
