"""What the tests of a deployment share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where hosts that are folders keep their packages: these are made once for all of a file."""
    return tmp_path_factory.mktemp("envs")
