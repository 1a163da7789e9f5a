"""State copies and versions in Redis."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from dualstream.service.journal.protocol import (
    Change,
    Conflict,
    CopyUse,
    MissingPosition,
    StoredCopy,
    TooManyVersions,
    UnknownCopy,
    Version,
)
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.audit import RedisAudit
from dualstream.service.journal.redis.keys_and_values import keys_of

PART_BYTES = 1 << 20
_READS = ("find", "piece", "list", "uses", "version", "versions")


class RedisCopies(RedisAudit):
    """Copies and versions."""

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
        parts = range(0, len(data), PART_BYTES)
        while True:
            begin = ("begin", incarnation, digest, len(data), len(parts))
            answer = await self._copy(model, digest, *begin)
            if answer[1]:
                return digest
            is_kept = 1
            for number, at in enumerate(parts):
                piece = data[at : at + PART_BYTES]
                part = ("part", incarnation, digest, number, piece)
                is_kept = (await self._copy(model, digest, *part))[1]
                if not is_kept:  # it was collected as unnamed
                    break
            if is_kept and (await self._copy(model, digest, "complete", incarnation, digest))[1]:
                return digest

    async def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        answer = await self._copy(model, digest, "find", incarnation, digest)
        if len(answer) == 1:
            return None
        pieces = [
            (await self._copy(model, digest, "piece", incarnation, number))[1]
            for number in range(answer[1])
        ]
        return b"".join(piece for piece in pieces if piece is not None)

    async def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> Sequence[StoredCopy]:
        answer = await self._copy(model, "", "list", incarnation, int(with_partial))
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        return sorted(
            (StoredCopy(digest.decode(), size) for digest, size in pairs), key=lambda c: c.digest
        )

    async def copy_uses(self, model: str, incarnation: str) -> Sequence[CopyUse]:
        answer = await self._copy(model, "", "uses", incarnation)
        named = [member.decode().split(" ") for member in answer[1:]]
        return [CopyUse(int(seq), digest) for seq, digest in named]

    async def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        answer = await self._copy(model, digest, "delete", incarnation, digest)
        if answer[0] == 5:
            raise Conflict(f"a version or a kept record of {model!r} refers to the copy {digest}")

    async def collect(self, model: str, incarnation: str) -> None:
        """Delete copies that only trimmed records named, and copies without a name for long."""
        patience_ms = round(self._limits.unnamed_copy_s * 1000)
        await self._copy(model, "", "collect", incarnation, patience_ms)

    async def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        answer = await self._copy(
            model,
            version.digest,
            "name",
            incarnation,
            version.name,
            version.digest,
            version.created_ms,
            f"{version.seq} {version.chain} {version.digest} {version.bytes}",
            version.note,
            self._limits.max_versions,
            *await self._change_arguments(model, change),
        )
        if answer[0] == 5:
            raise Conflict(f"version {version.name!r} of {model!r} already names another state")
        if answer[0] == 6:
            raise UnknownCopy(model, version.digest)
        if answer[0] == 8:
            raise MissingPosition(model, version.seq, version.chain)
        if answer[0] == 7:
            raise TooManyVersions(model, self._limits.max_versions)
        return _version(version.name, answer[2]), bool(answer[1])

    async def versions(self, model: str, incarnation: str) -> Sequence[Version]:
        answer = await self._copy(model, "", "versions", incarnation)
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        return sorted(
            (_version(name.decode(), stored) for name, stored in pairs),
            key=lambda version: (version.seq, version.name),
        )

    async def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        answer = await self._copy(model, "", "version", incarnation, name)
        return None if answer[1] is None else _version(name, answer[1])

    async def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        stored = await self._deletion_arguments(model, change)
        return bool((await self._copy(model, "", "unname", incarnation, name, *stored))[1])

    async def _copy(self, model: str, digest: str, *arguments: bytes | str | int) -> Any:
        keys = keys_of(model).of_copy(digest)
        is_read = arguments[0] in _READS
        return await self._run(model, scripts.STATE_COPIES, keys, arguments, is_read)


def _version(name: str, stored: bytes) -> Version:
    seq, chain, digest, size, created_ms, note = stored.decode().split(" ", 5)
    return Version(name, int(seq), chain, digest, int(size), int(created_ms), note)
