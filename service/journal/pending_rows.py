"""The part of the journal's contract that is about rows that wait for their labels.

They stand beside the log: no state holds them, and no replica reads them. A row is remembered under
the key of its label (`KeyKind.LABEL` and the sample's id). The append that journals its label, or
finds that it was journalled before, lets go of the row in the same step, and a row whose label is
known is not remembered again: so a row that is there is one of which no label was learned, as far
back as keys are kept.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class NewPendingRow(msgspec.Struct, frozen=True, gc=False):
    """A row as it was served.

    key      the key that its label will have
    body     the row without its label, as bytes that only the caller reads; not empty
    default  the label that it has once the wait is over, likewise; empty for none
    wait_s   how long it waits for its label before it has the default one
    """

    key: bytes
    body: bytes
    default: bytes = b""
    wait_s: float = 0.0


class PendingRow(msgspec.Struct, frozen=True, gc=False):
    """A row that waits; without a body one that has waited too long, and has no default label.

    time_ms  when it was remembered, by the store's clock     age_s  how long ago that is
    due_ms   when its wait is over
    """

    key: bytes
    body: bytes
    default: bytes
    time_ms: int
    due_ms: int
    age_s: float = 0.0


class AwaitingLabels(msgspec.Struct, frozen=True, gc=False):
    """A model that remembers rows: how many wait, and whether the wait of any is over."""

    model: str
    incarnation: str
    rows: int
    is_due: bool


class Overdue(msgspec.Struct, frozen=True, gc=False):
    """The rows whose default label is due, the oldest first, and how many others have expired."""

    rows: Sequence[PendingRow]
    expired: int


class PendingRows(Protocol):
    """What a store promises of rows that wait; all of it belongs to one model."""

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        """Remember these rows, all or none but for those whose label is known. Atomic.

        Returns how many of them wait now. Under a key that the log knows, and has not forgotten by
        its age, nothing waits: that label was journalled, and the row would be learned once more.
        A row that is there under the same key gives way, whether it waits or has waited too long:
        it was served again. A row without a default label waits as long as the limits say, one with
        a default label until it has it.

        Raises ModelChanged; TooManyPendingRows when there would be more rows, or more bytes, than
        may wait.
        """

    async def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[PendingRow | None]:
        """Return what waits under each of these keys, None where nothing is known.

        That a row has expired is known for as long again as it waited.

        Raises ModelChanged.
        """

    async def awaiting_labels(self) -> list[AwaitingLabels]:
        """Return the models that remember rows. Not atomic; one made just now may be missing."""

    async def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        """Return up to `limit` rows whose default label is due, and let go of what has expired.

        What goes at once is bounded: ask again until nothing has. Each row counts as expired once,
        whoever asks.

        Raises ModelChanged.
        """
