"""Logs in SQLite: heads of models, with a cache of recent ones, and entries.

A head has the end of the model's log, and the numbers of its keys and nonces.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from sqlite3 import Connection
from typing import NamedTuple

import msgspec

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import ENTRY_OVERHEAD, Entry, LogPosition, ModelChanged
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread
from dualstream.service.journal.sqlite.wal import data_version


class Head(NamedTuple):
    """A model's number (row id), the end of its log, and the numbers of its keys and nonces."""

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


def find_head(db: Connection, model: str, incarnation: str) -> Head:
    """The model's head.

    Raises ModelChanged.
    """
    row = db.execute(_HEAD, (model,)).fetchone()
    if row is None or row[0] != incarnation:
        raise ModelChanged(model)
    return Head(*row[1:])


# The result is one row of JSON: for every row, the thread would have to reacquire the GIL.
_HEADS = """
SELECT json_group_array(json_array(id, incarnation,
    json_array(models.model, seq, chain, trimmed, first_key, next_key, nonces)))
FROM models JOIN heads ON heads.model = models.model WHERE id IN ({})
"""
_STATEMENTS = {number: _HEADS.format(", ".join("?" * number)) for number in (1, 4, 16, 64, 512)}
_MAX_MODELS = max(_STATEMENTS)
_decode_heads = msgspec.json.Decoder(list[tuple[str, str, Head]]).decode


def find_heads(db: Connection, models: Sequence[str]) -> dict[str, tuple[str, Head]]:
    """Incarnation and head of each model that exists."""
    by_model = {}
    for at in range(0, len(models), _MAX_MODELS):
        batch = models[at : at + _MAX_MODELS]
        number = next(number for number in _STATEMENTS if number >= len(batch))
        padding = [None] * (number - len(batch))  # keeps the number of prepared statements small
        [heads] = db.execute(_STATEMENTS[number], [*batch, *padding]).fetchone()
        for id_, incarnation, head in _decode_heads(heads):
            by_model[id_] = incarnation, head
    return by_model


class HeadCache:
    """Cache of heads as appends left them, for the writing connection.

    Valid until another connection commits, or this one changes any other row.
    """

    MAX_HEADS = 8192

    def __init__(self) -> None:
        # Least recently appended first.
        self._heads: OrderedDict[str, tuple[str, Head]] = OrderedDict()
        # `data_version` at the last look-up of heads, and whether it was looked up since the last
        # query of it.
        self._version, self._is_new = 0, False
        # `data_version` and `total_changes` when the heads were stored.
        self._as_of = (0, 0)

    def find(self, db: Connection, models: Sequence[str]) -> dict[str, tuple[str, Head]]:
        """As `find_heads`, within a write transaction."""
        self._version, self._is_new = data_version(db), True
        if self._as_of != (self._version, db.total_changes):
            self.forget()
        heads = self._heads
        cached = {model: heads[model] for model in models if model in heads}
        unknown = [model for model in models if model not in cached]
        return cached | find_heads(db, unknown) if unknown else cached

    def keep(self, db: Connection, moved: Mapping[str, tuple[str, Head]]) -> None:
        """Store the new heads, after the last statement of the transaction."""
        heads = self._heads
        for model, stands in moved.items():
            heads[model] = stands
            heads.move_to_end(model)
        while len(heads) > self.MAX_HEADS:
            heads.popitem(last=False)
        self._as_of = self._version, db.total_changes

    async def data_version(self, writer: ConnectionThread) -> int:
        """`data_version` of the writing connection, so only commits of other processes count.

        Checking every model after this process's own appends would take a tenth of its time. If an
        append has read the value since the last call, it is used.
        """
        if self._is_new:
            self._is_new = False
            return self._version
        return await writer.run(data_version)

    def forget(self) -> None:
        self._heads.clear()


def find_entries(
    db: Connection, model: int, after: int, through: int, limit_bytes: int
) -> list[Entry]:
    """Entries with after < last seq <= through, up to `limit_bytes`, at least one if any."""
    entries: list[Entry] = []
    size = 0
    for row in db.execute(
        "SELECT first_seq, seq, nonce, chain, time_ms, body FROM entries"
        " WHERE model = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (model, after, through),
    ):
        entry = Entry(*row)
        size += len(entry.body) + ENTRY_OVERHEAD
        if entries and size > limit_bytes:
            break
        entries.append(entry)
    return entries


def leads_on_from(db: Connection, head: Head, position: LogPosition) -> bool:
    """Does the log continue from this position, or end there?"""
    following = find_entries(db, head.model, position.seq, head.seq, 0)
    if not following:
        return (position.seq, position.chain) == (head.seq, head.chain)
    first = following[0]
    is_next = first.first_seq == position.seq + 1
    return is_next and next_chain(position.chain, first.nonce) == first.chain


def now_ms() -> int:
    """The store's clock."""
    return time.time_ns() // 1_000_000
