"""Input streams: queues in the store into which producers write messages for a model to learn.

A store with inputs has one queue per model. An append removes messages from the queue in the same
atomic step in which it journals their rows and moves a cursor. So each message is learned once: if
two readers take the same messages, the second one finds the cursor moved. Every message still in an
input has not been learned.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from dualstream.service.journal.protocol import CursorMove

CURSOR = "in"
"""Name of the cursor: id of the last message taken."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A producer's message: its id in the stream, and its fields in order."""

    id: str
    fields: tuple[tuple[bytes, bytes], ...]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The first messages of an input, and the cursor at the time of reading."""

    cursor: str | None
    messages: tuple[Message, ...]


class InputMove(CursorMove, frozen=True, gc=False):
    """A cursor move that removes messages from the input.

    messages   ids of all messages taken, in order
    refused    (index in `messages`, reason) of messages that no part contains; the append moves
               them, unchanged, to the dead-letter queue
    parts      (part number, index in `messages`) of the parts that have a key of their own. If the
               key is known with another fingerprint, the message goes to the dead-letter queue with
               the reason `reused`
    """

    messages: tuple[str, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    reused: str = ""


@runtime_checkable
class HasInputs(Protocol):
    """A journal with input streams; its `append` accepts an `InputMove`."""

    async def pending(self) -> Mapping[str, int]:
        """Number of waiting messages per model; models without messages are omitted.

        Raises JournalUnavailable.
        """

    async def waiting(self, model: str, incarnation: str) -> Waiting:
        """The first messages of the model's input, at least one if there is any.

        Raises JournalUnavailable, also if the input's key has another type.
        """
