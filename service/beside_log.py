"""What a store keeps of a model beside its log, so that it can be told whether any of it is new.

Rows that wait for labels, versions, cursors, and keys of requests that were duplicates come without
an entry: where the log ends shows nothing of them.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from service.journal.moving import Movable
from service.journal.protocol import Trimmed


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Digests of it, of which each is empty where there is nothing.

    told     what servers acknowledge without an entry: cursors, versions, rows that wait
    keys     the known keys
    appends  what stands under nonces
    rest     where the log begins, copies, which entries name them, snapshots
    """

    told: str
    keys: str
    appends: str
    rest: str

    def is_still(self, now: "Mark") -> bool:
        """Whether nothing was written since. Keys and answers expire all at once, by themselves."""
        stays = (self.told, self.rest) == (now.told, now.rest)
        return stays and now.keys in ("", self.keys) and now.appends in ("", self.appends)

    def text(self) -> str:
        """To be read by `read_mark`."""
        return msgspec.json.encode(self).decode()


read_mark = msgspec.json.Decoder(Mark).decode


class Beside(msgspec.Struct, frozen=True):
    """What stands beside a log: what is needed of it, and the mark of all."""

    cursors: Mapping[str, str]
    trimmed: int
    """The last seq of which no row is kept."""
    mark: Mark


async def beside(journal: Movable, model: str, incarnation: str) -> Beside:
    """What stands beside the model's log. The cursors are read first.

    Raises ModelChanged.
    """
    own = model, incarnation
    cursors = await journal.cursors(*own)
    trimmed = await _trimmed(journal, *own)
    told = await _told(journal, *own, cursors)
    keys: list[bytes] = []
    at: int | None = 0
    while at is not None:
        some, at = await journal.kept_keys(*own, at)
        keys += map(_hash, some)
    appends = map(_hash, await journal.kept_appends(*own))
    kept = [
        await journal.copies(*own),
        await journal.copy_uses(*own),
        await journal.snapshots(*own),
    ]
    rest = [_hash(trimmed), *(_hash(one) for some in kept for one in some)]
    return Beside(cursors, trimmed, Mark(told, _joined(keys), _joined(appends), _joined(rest)))


async def told(journal: Movable, model: str, incarnation: str) -> str:
    """`Mark.told` alone. Raises ModelChanged."""
    return await _told(journal, model, incarnation, await journal.cursors(model, incarnation))


async def _told(journal: Movable, model: str, incarnation: str, cursors: Mapping[str, str]) -> str:
    found = [_hash(cursor) for cursor in cursors.items()]
    found += map(_hash, await journal.versions(model, incarnation))
    at: int | None = 0
    while at is not None:
        rows, at = await journal.kept_rows(model, incarnation, at)
        found += map(_hash, rows)
    return _joined(found)


async def _trimmed(journal: Movable, model: str, incarnation: str) -> int:
    try:
        await journal.read(model, incarnation, 0, 1)
    except Trimmed as trimmed:
        return trimmed.kept_from - 1
    return 0


def _hash(one: Any) -> bytes:
    """Of a value whose type tells it from those of other types in the same digest."""
    name = type(one).__name__.encode()
    return blake2b(name + msgspec.msgpack.encode(one), digest_size=16).digest()


def _joined(hashes: Iterable[bytes]) -> str:
    """In whatever order they came: stores tell some in their own."""
    found = sorted(hashes)
    return blake2b(b"".join(found), digest_size=16).hexdigest() if found else ""
