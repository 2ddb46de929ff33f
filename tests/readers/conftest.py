"""Places to put files."""

import pytest


@pytest.fixture
def put(tmp_path):
    """Write bytes under a name and return the path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder that the generated examples of this module share: each writes its file anew."""
    return tmp_path_factory.mktemp("scratch")
