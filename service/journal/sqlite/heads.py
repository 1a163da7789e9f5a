"""Where a model's log, keys and nonces stand."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

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


# Of one and of several models; they stand in one row, as a thread that asks for rows one by one
# waits for its turn to run Python at each.
_HEADS = """
SELECT json_group_array(json_array(id, incarnation,
    json_array(models.model, seq, chain, trimmed, first_key, next_key, nonces)))
FROM models JOIN heads ON heads.model = models.model WHERE id IN ({})
"""
_STATEMENTS = {number: _HEADS.format(", ".join("?" * number)) for number in (1, 4, 16, 64)}
_MOST = max(_STATEMENTS)
_decode_heads = msgspec.json.Decoder(list[tuple[str, str, Head]]).decode


def find_heads(
    connection: sqlite3.Connection, models: Sequence[str]
) -> dict[str, tuple[str, Head]]:
    """Incarnation and head of each of the models that is there."""
    found = {}
    for at in range(0, len(models), _MOST):
        some = models[at : at + _MOST]
        number = next(number for number in _STATEMENTS if number >= len(some))
        padding = [None] * (number - len(some))  # so that there are few statements
        [heads] = connection.execute(_STATEMENTS[number], [*some, *padding]).fetchone()
        for id_, incarnation, head in _decode_heads(heads):
            found[id_] = incarnation, head
    return found
