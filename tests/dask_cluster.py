"""A Dask cluster of two processes, which the tests of a module share. It replaces killed workers.

Idle, it takes a tenth of a core: it must not live until the last test of all.
"""

from collections.abc import Iterator
from multiprocessing import forkserver

import dask
import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    # Workers that are forked import a third as much. Dask asks for other modules if it is first.
    forkserver.ensure_running()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        yield client
