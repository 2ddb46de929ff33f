"""A made-up batch and layer for the tests of the loss."""

import torch

N, D, B = 60, 5, 6


def make_problem():
    random = torch.Generator().manual_seed(0)
    items = torch.randn(N, D, generator=random).requires_grad_()
    queries = torch.randn(B, D, generator=random).requires_grad_()
    bias = torch.randn(N, generator=random).requires_grad_()
    positives = torch.randint(N, (B,), generator=random)
    return queries, positives, items, bias


def gradients(loss, *tensors):
    return [found.to_dense() if found.is_sparse else found for found in torch.autograd.grad(loss, tensors)]
