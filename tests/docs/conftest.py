"""Fixtures of a running application, which the tests of the service share."""

from tests.service.conftest import client, model, serve, shared_server, store

__all__ = ["client", "model", "serve", "shared_server", "store"]
