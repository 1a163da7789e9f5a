"""Requests to commit: rows to learn as parts of an entry, or one control record."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from dualstream.service.codecs import ListedRows, Rows, class_texts
from dualstream.service.journal.audit import SERVER, Author, describe_fields
from dualstream.service.journal.protocol import Change, CursorMove, Part, Place
from dualstream.service.journal.record import (
    Control,
    KeyKind,
    decode,
    encode_control,
    encode_opening,
    encode_rows,
    make_key,
)
from dualstream.service.replica.controls import Arrays, Order, control_of


class Request(msgspec.Struct):
    """One learn request: its encoded parts, its rows and its stored key.

    Each run of rows without an id is one part. Each row with an id is a part with its own key.
    """

    parts: list[Part]
    rows: Rows
    key: bytes | None = None
    names: Sequence[tuple[int, str]] = ()
    """(index, name) of features that the journal may not know yet."""
    cursor: CursorMove | None = None
    """Moved in the same step that journals the rows. Such rows form a group of their own."""
    on_journalled: Callable[[], None] | None = None
    """Called when all rows are journalled as requested, before they are learned."""
    is_followed: bool = False
    """May the client submit its next rows as soon as `on_journalled` is called?"""

    @property
    def part(self) -> Part:
        """The first part; for requests with one part."""
        return self.parts[0]

    @classmethod
    def of(
        cls,
        rows: Rows,
        key: bytes | None,
        fingerprint: bytes | None,
        names: Sequence[tuple[int, str]] = (),
        is_whole: bool = False,
    ) -> Self:
        """Create a request of these rows, under the stored `key` if it has one.

        `names` are for rows in a Batch; ListedRows bring their own. A request with `is_whole` is
        journalled as a whole or not at all. Requests without row ids always are.
        """
        if isinstance(rows, ListedRows):
            if rows.ids:
                return cls(list(_parts(rows, key, fingerprint, is_whole)), rows, key, rows.names)
            names = rows.names
        body = encode_rows(
            rows.indptr,
            rows.indices,
            rows.values,
            class_texts(rows),
            weights=rows.weights,
            names=names,
            key=key,
            fingerprint=fingerprint,
        )
        return cls([Part(body, len(rows), key, fingerprint)], rows, key, names)


def _parts(
    rows: ListedRows, key: bytes | None, fingerprint: bytes | None, is_whole: bool
) -> Iterator[Part]:
    """Encode the parts of a request of which some rows have ids."""
    if key is not None and 0 in rows.ids:
        yield Part(encode_opening(key, fingerprint), 0, key, fingerprint, whole=is_whole)
    first = 0
    while first < len(rows):
        stop = first + 1
        if first in rows.ids:
            own: bytes | None = make_key(KeyKind.SAMPLE, rows.ids[first])
            # The digest excludes names: they are only journalled by the worker that sees them
            # first.
            mark: bytes | None = hashlib.sha256(_encoded(rows, first, stop)).digest()[:16]
        else:
            while stop < len(rows) and stop not in rows.ids:
                stop += 1
            own, mark = (None, None) if first else (key, fingerprint)
        continues = key is not None and own != key
        body = _encoded(
            rows,
            first,
            stop,
            names=rows.names_of(first, stop),
            key=own,
            fingerprint=mark,
            continues=continues,
        )
        # The journal groups parts by a request's key. Without a key, only the store knows that they
        # belong together.
        belongs = continues or (is_whole and first > 0)
        yield Part(body, stop - first, own, mark, belongs, is_whole and not belongs)
        first = stop


def _encoded(rows: ListedRows, first: int, stop: int, **beside: Any) -> bytes:
    """Encode the rows first .. stop - 1."""
    return encode_rows(
        rows.indptr[first : stop + 1],
        rows.indices,
        rows.values,
        rows.labels[first:stop],
        weights=rows.weights[first:stop],
        **beside,
    )


def asked_by(order: Order, arrays: Arrays | None = None) -> bytes:
    """Bytes of what a client requested, if the order holds all of it."""
    given = control_of(order, arrays)
    return encode_control(given.kind, given.fields, given.arrays)


class ControlRequest(msgspec.Struct):
    """One control: the encoded part and the control itself."""

    part: Part
    control: Control
    by: Author | None = SERVER
    """Author in the audit log. None: the model's spec prescribes it, and it is not logged."""
    held: Place | None = None
    """Position of the state that it was made from. If the journal lost it, the append fails."""

    @property
    def change(self) -> Change | None:
        """Entry for the audit log."""
        if self.by is None:
            return None
        return self.by.change(self.control.kind, **describe_fields(self.control.fields))

    @property
    def parts(self) -> list[Part]:
        return [self.part]

    @property
    def key(self) -> bytes | None:
        return self.part.key

    @classmethod
    def of(
        cls,
        order: Order,
        key: bytes | None = None,
        asked: bytes | None = None,
        arrays: Arrays | None = None,
        by: Author | None = SERVER,
        held: Place | None = None,
    ) -> Self:
        """Create a request of this order and its arrays, under the stored `key` if it has one.

        `asked` is what the client requested, if the order holds more than that. It distinguishes
        this request from another one under the same key.
        """
        plain = body = asked_by(order, arrays)
        fingerprint = None
        if key is not None:
            given = control_of(order, arrays)
            what = (given.kind, given.fields, given.arrays)
            fingerprint = hashlib.sha256(plain if asked is None else asked).digest()[:16]
            body = encode_control(*what, key=key, fingerprint=fingerprint)
        # Decode it as every reader will: field order may differ from `order`.
        ((_, control),) = decode(plain)
        assert isinstance(control, Control)
        return cls(Part(body, 1, key, fingerprint), control, by, held)


AnyRequest = Request | ControlRequest
