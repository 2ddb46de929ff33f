"""A catalogue of 300 items that is compacted only when a test asks for it."""

import pytest

import softindex
from tests.live.catalogues import vectors


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalogue"


@pytest.fixture
def live(path):
    with softindex.open(path, create=vectors(300), compaction="manual") as opened:
        yield opened
