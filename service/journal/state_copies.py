"""The part of the journal's contract that is about full copies of states, and their names.

A copy is known by the SHA-256 of its bytes. Versions name copies, and so do kept records (a
rollback): a copy is kept as long as any of them does.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dualstream.service.journal.audit import Change


class StoredCopy(msgspec.Struct, frozen=True, gc=False):
    """A full copy of a state, by the SHA-256 of its bytes."""

    digest: str
    bytes: int


class Version(msgspec.Struct, frozen=True, gc=False):
    """A name for a copy, and the place in the log that its state had.

    created_ms  by the store's clock, which gives it where it is 0
    """

    name: str
    seq: int
    chain: str
    digest: str
    bytes: int
    created_ms: int = 0
    note: str = ""


class CopyUse(msgspec.Struct, frozen=True, gc=False):
    """The record `seq` of the kept log names the copy of this digest."""

    seq: int
    digest: str


class StateCopies(Protocol):
    """What a store promises of copies and versions; all of it belongs to one model."""

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        """Keep a full copy of a state and return its digest, the SHA-256 of the bytes in hex.

        Written in parts of up to 1 MiB, between which other work goes on; readers see it from
        one moment on. One that is there already stays, and any number may write it at once. For
        ten minutes it stays without a name; what keeps it then is a version, or a kept entry.

        Raises ModelChanged.
        """

    async def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        """Return the bytes of a copy as they are found, None where none is.

        Raises ModelChanged.
        """

    async def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> Sequence[StoredCopy]:
        """Return the copies that are kept, in order of their digests.

        Those that are whole, or `with_partial` also those being written, or left so by a writer
        who died; `bytes` are those of the whole copy.

        Raises ModelChanged.
        """

    async def copy_uses(self, model: str, incarnation: str) -> Sequence[CopyUse]:
        """Return which kept records name a copy, in order of seq.

        Raises ModelChanged.
        """

    async def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        """Let go of a copy, whole or not; nothing happens where none is.

        Raises ModelChanged; Conflict while a version or a kept record names it.
        """

    async def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        """Name a copy and return (the version, True), or (what the name stands for, False). Atomic.

        A new one, without a time, has to stand where the log still leads on from, or ends.

        Raises ModelChanged; UnknownCopy when the copy is not there; TooManyVersions; Conflict when
        the name stands for another copy, or when the log does not hold its seq with its chain.
        """

    async def versions(self, model: str, incarnation: str) -> Sequence[Version]:
        """Return the versions of the model, in order of seq and name.

        Raises ModelChanged.
        """

    async def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        """Return the version of this name, None where none is.

        Raises ModelChanged.
        """

    async def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        """Take the name away, and the copy with it unless something else names it. Atomic.

        False where there is no such version. Raises ModelChanged.
        """
