"""Where a model's log, keys and nonces stand."""

import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.journal.sqlite.wal import data_version


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
_MAX_MODELS = max(_STATEMENTS)
_decode_heads = msgspec.json.Decoder(list[tuple[str, str, Head]]).decode


def find_heads(
    connection: sqlite3.Connection, models: Sequence[str]
) -> dict[str, tuple[str, Head]]:
    """Incarnation and head of each of the models that is there."""
    found = {}
    for at in range(0, len(models), _MAX_MODELS):
        some = models[at : at + _MAX_MODELS]
        number = next(number for number in _STATEMENTS if number >= len(some))
        padding = [None] * (number - len(some))  # so that there are few statements
        [heads] = connection.execute(_STATEMENTS[number], [*some, *padding]).fetchone()
        for id_, incarnation, head in _decode_heads(heads):
            found[id_] = incarnation, head
    return found


class KnownHeads:
    """Heads as appends left them, in the memory of the connection that writes.

    They stand as long as no other connection commits anything and this one changes no other row.
    """

    MAX_HEADS = 8192

    def __init__(self) -> None:
        # In the order in which they were moved last.
        self._heads: OrderedDict[str, tuple[str, Head]] = OrderedDict()
        self.version, self.found = 0, 0
        """What `data_version` was when heads were looked for last, and how often they were."""
        # What was committed by others, and changed by this connection, when they were kept.
        self._as_of = (0, 0)

    def find(
        self, connection: sqlite3.Connection, models: Sequence[str]
    ) -> dict[str, tuple[str, Head]]:
        """As `find_heads`, in a transaction that writes."""
        self.version = data_version(connection)
        self.found += 1
        if self._as_of != (self.version, connection.total_changes):
            self.forget()
        heads = self._heads
        found = {model: heads[model] for model in models if model in heads}
        unknown = [model for model in models if model not in found]
        return found | find_heads(connection, unknown) if unknown else found

    def keep(self, connection: sqlite3.Connection, moved: Mapping[str, tuple[str, Head]]) -> None:
        """Where these models stand now, once all that this transaction writes is written."""
        heads = self._heads
        for model, stands in moved.items():
            heads[model] = stands
            heads.move_to_end(model)
        while len(heads) > self.MAX_HEADS:
            heads.popitem(last=False)
        self._as_of = self.version, connection.total_changes

    def forget(self) -> None:
        self._heads.clear()
