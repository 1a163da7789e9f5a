"""Full copies of states by their SHA-256, and versions (names of copies).

Versions and kept control records (rollbacks) refer to copies. A copy is kept as long as one does.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dualstream.service.journal.audit import Change


class StoredCopy(msgspec.Struct, frozen=True, gc=False):
    """A full copy of a state."""

    digest: str
    bytes: int


class Version(msgspec.Struct, frozen=True, gc=False):
    """A name for a copy, with the log position of its state.

    created_ms  by the store's clock; 0 in a request for the current time
    """

    name: str
    seq: int
    chain: str
    digest: str
    bytes: int
    created_ms: int = 0
    note: str = ""


class CopyUse(msgspec.Struct, frozen=True, gc=False):
    """The kept record `seq` refers to the copy with this digest."""

    seq: int
    digest: str


class StateCopies(Protocol):
    """Copies and versions of a store; each belongs to one model."""

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        """Store a full copy of a state and return its digest, the SHA-256 of the bytes in hex.

        The copy is written in chunks of up to 1 MiB, between which other work proceeds; readers see
        it once it is complete. Concurrent writers of the same copy are safe, and an existing copy
        is kept. A copy without a name is kept for ten minutes, a named one as long as its version
        or entry is.
        """

    async def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        """Return the stored bytes of a copy, unchecked; None if there is no such copy."""

    async def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> Sequence[StoredCopy]:
        """Return the copies, ordered by digest.

        Complete ones; `with_partial` adds those still being written or abandoned. `bytes` is the
        size of the complete copy.
        """

    async def copy_uses(self, model: str, incarnation: str) -> Sequence[CopyUse]:
        """Return which kept records refer to a copy, ordered by seq."""

    async def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        """Delete a copy, complete or not. Does nothing if it does not exist.

        Raises Conflict while a version or a kept record refers to it.
        """

    async def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        """Name a copy. Return (the version, True), or (the existing version, False). Atomic.

        The log must continue from a new version's position, or end there, unless `created_ms` is
        set.

        Raises UnknownCopy if there is no such copy; TooManyVersions; Conflict if the
        name refers to another copy, or if the log does not contain the version's position.
        """

    async def versions(self, model: str, incarnation: str) -> Sequence[Version]:
        """Return the versions of the model, ordered by seq and name."""

    async def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        """Return the version of this name, or None."""

    async def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        """Delete the name, and its copy unless something else refers to it. Atomic.

        Returns False if there is no such version.
        """
