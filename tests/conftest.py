"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real ranks in processes of their own: `ranks.run(world_size, function, *args)`."""
    pool = RankPool()
    yield pool
    pool.close()
