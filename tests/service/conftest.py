"""Servers that the tests share."""

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from servers import items, running

import softindex


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """An index of 2,000 items with string ids, saved."""
    path = tmp_path_factory.mktemp("served") / "index"
    softindex.build(
        items(), ids=[f"item {row}" for row in range(2000)], tree=True, leaf_items=60, seed=0, threads=1
    ).save(path)
    return path


@pytest.fixture(scope="session")
def index(saved):
    return softindex.load(saved)


@pytest.fixture(scope="module")
def server(saved):
    with running(saved) as found:
        yield found
