"""The losses of other papers are their formulas, in float64."""

import pytest
import torch

from experiments.harness.baselines import ReducedCrossEntropy, ScalableCrossEntropy, fused_cross_entropy


def problem():
    random = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(count, 5, generator=random, dtype=torch.float64) for count in (9, 30))
    targets = torch.randint(30, (9,), generator=random)
    targets[4] = -100
    return queries.requires_grad_(), targets, items.requires_grad_(), torch.randn(30, generator=random).double()


def test_the_fused_loss_is_the_cross_entropy_of_the_layer():
    queries, targets, items, bias = problem()
    full = torch.nn.functional.cross_entropy(queries @ items.T + bias, targets)
    fused = fused_cross_entropy(queries, targets, items, bias)
    torch.testing.assert_close(fused, full)
    for one, other in zip(*(torch.autograd.grad(loss, [queries, items]) for loss in (fused, full)), strict=True):
        torch.testing.assert_close(one, other)


def test_buckets_of_everything_are_the_full_softmax():
    queries, targets, items, bias = problem()
    loss = ScalableCrossEntropy(3, 100, 100)(queries, targets, items, bias)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(queries @ items.T + bias, targets))


@pytest.mark.parametrize("buckets", [1, 4])
def test_small_buckets_are_their_definition(buckets):
    queries, targets, items, bias = problem()
    torch.manual_seed(3)
    found = ScalableCrossEntropy(buckets, 4, 6)(queries, targets, items, bias)
    torch.manual_seed(3)
    rows, wanted = queries.detach()[targets != -100], targets[targets != -100]
    worst = {}
    for centre in torch.randn(buckets, len(rows), dtype=torch.float64) @ rows:
        near = torch.argsort(items.detach() @ centre, descending=True)[:6].tolist()
        for row in torch.argsort(rows @ centre, descending=True)[:4].tolist():
            classes = [int(wanted[row]), *(item for item in near if item != wanted[row])]
            logits = items.detach()[classes] @ rows[row] + bias[classes]
            worst[row] = max(worst.get(row, -1.0), float(logits.logsumexp(0) - logits[0]))
    assert found.item() == pytest.approx(sum(worst.values()) / len(worst), rel=1e-12)
    found.backward()
    assert bool(torch.isfinite(queries.grad).all())
    assert bool((queries.grad[4] == 0).all())


@pytest.mark.parametrize("rounds", [1, 3])
def test_one_chunk_is_the_full_softmax_however_often_items_are_met(rounds):
    queries, targets, items, bias = problem()
    loss = ReducedCrossEntropy(rounds, 1)(queries, targets, items, bias)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(queries @ items.T + bias, targets))


@pytest.mark.parametrize(("rounds", "chunks", "beside"), [(1, 5, 0), (1, 4, 1), (2, 7, 1), (3, 20, 2)])
def test_chunks_are_their_definition(rounds, chunks, beside):
    queries, targets, items, bias = problem()
    torch.manual_seed(3)
    found = ReducedCrossEntropy(rounds, chunks, beside)(queries, targets, items, bias)
    torch.manual_seed(3)
    rows, wanted = queries.detach()[targets != -100], targets[targets != -100]
    met = [{int(target)} for target in wanted]
    for _ in range(rounds):
        anchors = torch.randn(chunks, 5, dtype=torch.float64)
        order, others = (
            sorted(range(len(side)), key=lambda place, side=side: int((anchors @ side[place]).argmax()))
            for side in (rows, items.detach())
        )
        many, most = -(-len(rows) // chunks), -(-len(items) // chunks)
        for place, row in enumerate(order):
            first = (place // many - beside) * most
            met[row] |= set(others[max(0, first) : max(0, first + (2 * beside + 1) * most)])
    losses = []
    for row, classes in enumerate(met):
        logits = items.detach() @ rows[row] + bias
        losses.append(float(logits[sorted(classes)].logsumexp(0) - logits[wanted[row]]))
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    found.backward()
    assert bool(torch.isfinite(queries.grad).all())
    assert bool((queries.grad[4] == 0).all())
