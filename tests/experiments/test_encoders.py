"""The sequence encoders are causal and ignore padding."""

import pytest
import torch

from experiments.harness.encoders import PADDING
from experiments.harness.hstu import HSTU
from experiments.harness.sasrec import SASRec


@pytest.mark.parametrize("encoder", ["SASRec", "HSTU"])
def test_an_encoder_sees_what_came_before_and_nothing_else(encoder):
    torch.manual_seed(0)
    model = {"SASRec": SASRec, "HSTU": HSTU}[encoder](20, width=8, length=6).eval()
    sequences = torch.tensor([[PADDING, PADDING, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    later = sequences.clone()
    later[:, -1] = 7
    earlier = sequences.clone()
    earlier[:, 2] = 8
    found, after, before = model(sequences), model(later), model(earlier)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:, :-1], after[:, :-1])
    assert (found[:, -1] - after[:, -1]).abs().max() > 1e-3
    assert (found[:, -1] - before[:, -1]).abs().amax(dim=1).min() > 1e-3
