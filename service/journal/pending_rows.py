"""Pending rows: predicted rows that wait for their labels, stored outside the log.

No state contains these rows and no replica reads them. A row is stored under the key of its label
(`KeyKind.LABEL` and the sample's id). An append that journals the label, or finds it already
journalled, deletes the row in the same step; a row whose label is known is not stored again. So the
label of a waiting row has not been learned, as far back as keys are kept. An append can also store
rows, each with a record that it journals (`Part.pending`).

A label that may be revised (`Part.revisable`) does not delete its row: the row stays for
`Limits.remember_s` as a labelled row, with the label and its seq, and each further label restarts
that time. Labelled rows count towards the limits as waiting ones do.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class NewPendingRow(msgspec.Struct, frozen=True, gc=False):
    """A row to store, as it was served.

    key      key of its future label
    body     the row without its label; not empty, opaque to the store
    default  label to use when the wait is over, opaque to the store; empty for none
    wait_s   how long the row waits before it gets the default label
    """

    key: bytes
    body: bytes
    default: bytes = b""
    wait_s: float = 0.0


class RevisableLabel(msgspec.Struct, frozen=True, gc=False):
    """A label whose row stays stored, so that another label can replace it.

    label     not empty, opaque to the store; no label begins with another one
    earlier   stored behind the label, opaque to the store
    replaces  what the row must have, label and earlier; empty for a row that waits for its first
    seq       of the record that has that label; if below 0, counted back from this label's record
    """

    label: bytes
    earlier: bytes = b""
    replaces: bytes = b""
    seq: int = 0


class PendingRow(msgspec.Struct, frozen=True, gc=False):
    """A stored row. An empty body means that it expired without a default label.

    time_ms     when it was stored, by the store's clock     age_s  how long ago that is
    due_ms      when its wait is over, or when a labelled row is deleted
    label, seq  of a labelled row: its label and what is stored behind it, and the seq of the record
                that has it
    """

    key: bytes
    body: bytes
    default: bytes
    time_ms: int
    due_ms: int
    age_s: float = 0.0
    label: bytes = b""
    seq: int = 0


class AwaitingLabels(msgspec.Struct, frozen=True, gc=False):
    """A model with pending rows: how many have a body, and whether any row is due."""

    model: str
    incarnation: str
    rows: int
    is_due: bool


class Overdue(msgspec.Struct, frozen=True, gc=False):
    """Rows whose default label is due, oldest first, and how many other rows expired."""

    rows: Sequence[PendingRow]
    expired: int


class PendingRows(Protocol):
    """Pending rows of a store; each belongs to one model."""

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        """Store these rows, all or none, except rows whose label is already known. Atomic.

        Returns how many of the rows wait now. A label that is known by its key (and not expired),
        or by a labelled row, was journalled, so its row is not stored: it would be learned twice.
        A row already stored under the same key is replaced, as it was served again. Rows without a
        default label wait for `Limits.remember_s`, rows with one until they get it.

        Raises TooManyPendingRows if the rows or bytes exceed the limits.
        """

    async def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[PendingRow | None]:
        """Return the row under each key, or None.

        An expired row is returned, without its body, for as long again as it waited. A labelled row
        is returned until it is due.
        """

    async def awaiting_labels(self) -> list[AwaitingLabels]:
        """Return the models with pending rows. Not atomic; the newest may be missing."""

    async def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        """Return up to `limit` rows whose default label is due; delete expired and labelled rows.

        One call does bounded work: call again until it returns nothing. Each row is counted as
        expired once, across all callers; labelled rows do not expire.
        """

    async def forget_labelled(self, model: str, incarnation: str, key: bytes) -> None:
        """Delete the labelled row under this key, if there is one."""
