"""Inputs: what producers write straight into a store, for its models to learn.

A store that has inputs keeps one for each model, a queue of messages. An append takes messages out
of it in the same atomic step in which it journals their rows and moves a cursor, so that each
message is taken once, whoever tries: of two that read the same ones the second finds the cursor
moved. All that an input holds therefore waits still.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from dualstream.service.journal.protocol import CursorMove

CURSOR = "in"
"""The name of the cursor: the id of the message taken last."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer wrote: its id in the input, its fields in their order."""

    id: str
    fields: tuple[tuple[bytes, bytes], ...]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The first messages of an input, and where the cursor stood when they were read."""

    cursor: str | None
    messages: tuple[Message, ...]


class InputMove(CursorMove, frozen=True, gc=False):
    """A cursor's move that takes messages out of the input.

    messages   the ids of all of them, in their order
    refused    places in `messages` and reasons of those that no part holds: the step puts them, as
               they are, among the dead ones
    parts      numbers of the parts that have a key of their own and places of their messages. One
               whose key is known with another fingerprint is put among the dead ones, too, for
               the reason `reused`
    """

    messages: tuple[str, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    reused: str = ""


@runtime_checkable
class HasInputs(Protocol):
    """A journal whose models have inputs; its `append` takes an `InputMove`."""

    async def pending(self) -> Mapping[str, int]:
        """How many messages wait for which models; those for which none waits are left out.

        Raises JournalUnavailable.
        """

    async def waiting(self, model: str, incarnation: str) -> Waiting:
        """The first messages of the model's input, at least one if there is any.

        Raises ModelChanged; JournalUnavailable, also where something else has the input's key.
        """
