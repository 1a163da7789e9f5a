"""A Dask cluster of two processes, which the tests share. Killed workers are started again."""

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client
