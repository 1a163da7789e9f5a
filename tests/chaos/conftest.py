from tests.stores import store

__all__ = ["store"]
