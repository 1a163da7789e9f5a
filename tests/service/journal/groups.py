"""Helpers to build groups of parts, and a model to append to."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from dualstream.service.journal.chain import OURS
from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    Journal,
    ModelRecord,
    NewPendingRow,
    Part,
    PartPosition,
    RevisableLabel,
)
from dualstream.service.journal.record import (
    KeyKind,
    Rows,
    decode_merged,
    encode_opening,
    encode_rows,
    make_key,
)

SPEC, CLIENT_SPEC = b'{"algorithm":"dual_ascent"}', b"{}"


def fingerprint(text: str) -> bytes:
    return text.encode().ljust(16, b".")


def rows(*tags: int, id: str | None = None, payload: str = "", continues: bool = False) -> Part:
    """One part; each row's first index is its tag. With `id`, a part under a sample id."""
    key = None if id is None else make_key(KeyKind.SAMPLE, id)
    return _part(tags, key, payload, continues)


def request(
    key: str, *parts: Part, payload: str = "", kind: KeyKind = KeyKind.REQUEST
) -> list[Part]:
    """The parts of one request with a key; an empty part opens it."""
    mark, stored = fingerprint(payload), make_key(kind, key)
    opening = Part(encode_opening(stored, mark), 0, stored, mark)
    return [opening, *(_continued(part) for part in parts)]


def whole(*parts: Part) -> list[Part]:
    """The parts of one request, with or without a key, journalled completely or not at all."""
    opening, *others = parts
    continued = [msgspec.structs.replace(part, continues=True) for part in others]
    return [msgspec.structs.replace(opening, whole=True), *continued]


def keyed(key: str, *tags: int, payload: str = "", kind: KeyKind = KeyKind.REQUEST) -> Part:
    """The first part of a request, with rows and the request's key."""
    return _part(tags, make_key(kind, key), payload, False)


def _part(tags: Sequence[int], key: bytes | None, payload: str, continues: bool) -> Part:
    mark = None if key is None else fingerprint(payload)
    options: dict[str, Any] = {"key": key, "fingerprint": mark, "continues": continues}
    body = encode_rows(range(len(tags) + 1), tags, None, [1.0] * len(tags), **options)
    return Part(body, len(tags), **options)


def _continued(part: Part) -> Part:
    if part.pending is not None or part.revisable is not None:
        return msgspec.structs.replace(part, continues=True)
    rows = decode_merged(part.body)[1][0]
    assert isinstance(rows, Rows)
    options: dict[str, Any] = {"key": part.key, "fingerprint": part.fingerprint, "continues": True}
    body = encode_rows(rows.indptr, rows.indices, rows.values, rows.labels, **options)
    return Part(body, part.count, **options)


class Log:
    """A model, and the position that its appender knows."""

    def __init__(self, journal: Journal, record: ModelRecord) -> None:
        self.journal, self.record = journal, record
        self.model, self.incarnation = record.id, record.incarnation
        self.known_seq = record.seq

    @classmethod
    async def create(cls, journal: Journal, model: str = "adult") -> "Log":
        record, _ = await journal.create(model, SPEC, CLIENT_SPEC)
        return cls(journal, record)

    async def append(self, *parts: Part, nonce: bytes | None = None, **options: Any) -> Appended:
        previous = options.pop("known_seq", self.known_seq)
        appended = await self.journal.append(
            AppendRequest(
                self.model, self.incarnation, nonce or OURS.make(), previous, parts, **options
            )
        )
        self.known_seq = max(self.known_seq, appended.seq or 0)
        return appended

    async def tags(self, after: int = 0) -> list[int]:
        """The tags of all rows in the journal."""
        results: list[int] = []
        while entries := await self.journal.read(self.model, self.incarnation, after):
            for entry in entries:
                for block in decode_merged(entry.body)[1]:
                    assert isinstance(block, Rows)
                    results += block.indices.tolist()
            after = entries[-1].seq
        return results

    async def last_seq(self) -> int:
        return (await self.journal.get(self.model)).seq


def places(appended: Appended) -> list[tuple[int, int, str]]:
    """(first seq, last seq, what happened) of each part."""
    return [
        (position.first_seq, position.seq, _happened(position)) for position in appended.positions
    ]


def _happened(position: PartPosition) -> str:
    if position.refused:
        return "refused for a conflict" if position.conflict else "refused"
    return "conflict" if position.conflict else "duplicate" if position.duplicate else "new"


def label_key(id: str) -> bytes:
    return make_key(KeyKind.LABEL, id)


def pending_row(
    id: str, body: bytes = b"row", default: bytes = b"", wait_s: float = 0.0
) -> NewPendingRow:
    return NewPendingRow(label_key(id), body, default, wait_s)


def late_label(id: str, y: float = 1.0, continues: bool = False) -> Part:
    mark = fingerprint(str(y))
    body = encode_rows(
        [0, 1], [0], None, [y], key=label_key(id), fingerprint=mark, continues=continues
    )
    return Part(body, 1, label_key(id), mark, continues)


def revisable(id: str, label: str, replaces: str = "", seq: int = 0, earlier: str = "") -> Part:
    """A label whose row stays stored."""
    mark = RevisableLabel(label.encode(), earlier.encode(), replaces.encode(), seq)
    return msgspec.structs.replace(late_label(id), fingerprint=fingerprint(label), revisable=mark)


def observed(
    id: str, tag: int, body: bytes = b"row", default: bytes = b"", wait_s: float = 0.0
) -> Part:
    """A record whose first index is its tag, and a pending row that is stored with it."""
    return Part(
        encode_rows([0, 1], [tag], None, [1.0]),
        1,
        label_key(id),
        pending=pending_row(id, body, default, wait_s),
    )


def some_rows(chance: random.Random, is_free: bool = True) -> Part:
    """Rows with or without an id, of few ids and payloads, so that they meet again.

    Some wait for their labels, and some are such labels: revisable ones if `is_free`.
    """
    if chance.random() < 0.2:
        id, tag = chance.choice("klmnop"), chance.randrange(1000)
        if chance.random() < 0.3:
            return late_label(id)
        return observed(id, tag, b"." * (tag + 1))
    if is_free and chance.random() < 0.25:
        replaces, earlier = chance.choice(["", "", *"xyz"]), chance.choice(["", "", "e"])
        label, seq = chance.choice("xyz"), chance.choice([-2, -1, -1, *range(1, 9)])
        return revisable(chance.choice("klABC"), label, replaces, seq, earlier)
    tags = [chance.randrange(1000) for _ in range(chance.randint(1, 3))]
    id = chance.choice([None, None, *"abcdefgh"])
    return rows(*tags, id=id, payload=chance.choice("xxxy"))


def some_request(chance: random.Random) -> list[Part]:
    is_whole = chance.random() < 0.4
    parts = [some_rows(chance, not is_whole) for _ in range(chance.randint(0, 4))]
    kind = chance.choice([KeyKind.REQUEST, KeyKind.CHUNK])
    key, payload = chance.choice("rstuvw"), chance.choice("xxxy")
    if parts and is_whole and chance.random() < 0.5:
        return whole(*parts)
    parts = request(key, *parts, payload=payload, kind=kind)
    if chance.random() < 0.5:
        parts[0] = keyed(key, chance.randrange(1000), payload=payload, kind=kind)
    return whole(*parts) if is_whole else parts


def some_group(chance: random.Random) -> list[Part]:
    group: list[Part] = []
    for _ in range(chance.randint(0, 5)):
        group += some_request(chance) if chance.random() < 0.4 else [some_rows(chance)]
    return group
