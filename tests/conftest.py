"""Every test draws the same random numbers from torch, whatever ran before it."""

import sys

import pytest


@pytest.fixture(autouse=True)
def fixed_seed():
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
