"""A saved directory for the tests of the store."""

from pathlib import Path

import pytest
from samples import SMALL

from softindex.store import save


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "index"
    save(path, SMALL)
    return path
