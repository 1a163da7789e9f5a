"""Rows that several tests share."""

from pathlib import Path

import pytest

from dualstream.solvers import Batch
from tests.dask_cluster import cluster

__all__ = ["cluster"]

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="session")
def adult() -> Batch:
    """The first 500 rows of a9a."""
    result = Batch.from_libsvm((GOLDEN / "a9a_500.libsvm").read_bytes(), 123)
    assert result.bad == []
    return result.batch


@pytest.fixture(scope="session")
def adult_1000(adult) -> Batch:
    """The first 1,000 rows of a9a."""
    result = Batch.from_libsvm((GOLDEN / "a9a_501_1000.libsvm").read_bytes(), 123)
    assert result.bad == []
    return Batch.concat([adult, result.batch])
