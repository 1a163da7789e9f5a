"""Where a model's log, keys and nonces stand."""

import sqlite3
from typing import NamedTuple

from service.journal.protocol import ModelChanged


class Head(NamedTuple):
    """A model's number and where its log, keys and nonces stand."""

    model: int
    seq: int
    chain: str
    trimmed: int
    first_key: int
    next_key: int
    nonces: int


_HEAD = """
SELECT incarnation, models.model, seq, chain, trimmed, first_key, next_key, nonces
FROM models JOIN heads ON heads.model = models.model WHERE id = ?
"""


def find_head(connection: sqlite3.Connection, model: str, incarnation: str) -> Head:
    """The model's head.

    Raises ModelChanged.
    """
    row = connection.execute(_HEAD, (model,)).fetchone()
    if row is None or row[0] != incarnation:
        raise ModelChanged(model)
    return Head(*row[1:])
