"""Fixtures of a running application, which the tests of the service share."""

from tests.dask_cluster import cluster
from tests.service.conftest import client, model, serve, shared_server, store

__all__ = ["client", "cluster", "model", "serve", "shared_server", "store"]
