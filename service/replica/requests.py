"""What is to be committed: learn requests as parts of the journal, and controls as one record."""

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
    """One learn request: its parts, and beside them its rows and its stored key.

    Each run of rows without an id is a part, and each row that has an id, with its own key.
    """

    parts: list[Part]
    rows: Rows
    key: bytes | None = None
    names: Sequence[tuple[int, str]] = ()
    """Places and names of features that the journal may not know yet."""
    cursor: CursorMove | None = None
    """Moved in the step that journals the rows, which are a group of their own then."""
    on_journalled: Callable[[], None] | None = None
    """Called when they stand in the journal as they should, before they are learned."""
    is_followed: bool = False
    """Whether who hears that they do may have the next rows at hand by then."""

    @property
    def part(self) -> Part:
        """The first one, where there is no other."""
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
        """A request of these rows, under the stored `key` if it has one.

        `names` come with rows that are a Batch; listed ones bring their own. One that `is_whole` is
        journalled whole or not at all, as any is of which no row has an id.
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
    """The parts of a request of which some rows have ids."""
    if key is not None and 0 in rows.ids:
        yield Part(encode_opening(key, fingerprint), 0, key, fingerprint, whole=is_whole)
    first = 0
    while first < len(rows):
        stop = first + 1
        if first in rows.ids:
            own: bytes | None = make_key(KeyKind.SAMPLE, rows.ids[first])
            # Of its columns without names, which another worker may have told already.
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
        # The journal knows requests by their keys; that others are taken whole the store is told.
        belongs = continues or (is_whole and first > 0)
        yield Part(body, stop - first, own, mark, belongs, is_whole and not belongs)
        first = stop


def _encoded(rows: ListedRows, first: int, stop: int, **beside: Any) -> bytes:
    """The rows from `first` to before `stop`."""
    return encode_rows(
        rows.indptr[first : stop + 1],
        rows.indices,
        rows.values,
        rows.labels[first:stop],
        weights=rows.weights[first:stop],
        **beside,
    )


def asked_by(order: Order, arrays: Arrays | None = None) -> bytes:
    """What a client has asked for, where the order says all of it."""
    given = control_of(order, arrays)
    return encode_control(given.kind, given.fields, given.arrays)


class ControlRequest(msgspec.Struct):
    """One control: a part of one record, and beside it the control itself."""

    part: Part
    control: Control
    by: Author | None = SERVER
    """Who changes the model by it; None: what its spec says, which is not in the log of changes."""
    held: Place | None = None
    """Of the state that it was made of: where the journal has lost that, it does not enter."""

    @property
    def change(self) -> Change | None:
        """As the log of changes tells of it."""
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
        """A request of this order and its numbers, under the stored `key` if it has one.

        What the client has `asked` for tells it from another request under the key, where the
        order says more than that.
        """
        plain = body = asked_by(order, arrays)
        fingerprint = None
        if key is not None:
            given = control_of(order, arrays)
            what = (given.kind, given.fields, given.arrays)
            fingerprint = hashlib.sha256(plain if asked is None else asked).digest()[:16]
            body = encode_control(*what, key=key, fingerprint=fingerprint)
        # As everyone else will read it: what is given may have its fields in another order.
        ((_, control),) = decode(plain)
        assert isinstance(control, Control)
        return cls(Part(body, 1, key, fingerprint), control, by, held)


AnyRequest = Request | ControlRequest
