"""Versions of a model: named snapshots, rollback, and predictions by a version."""

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal.audit import SERVER, Author
from dualstream.service.journal.protocol import (
    Conflict,
    Journal,
    JournalError,
    JournalUnavailable,
    LogPosition,
    MissingPosition,
    Snapshot,
    Trimmed,
    UnknownCopy,
    Version,
)
from dualstream.service.models.model import Model
from dualstream.service.models.problems import unavailable
from dualstream.service.replica.copies import Rollback, fetch_copy, why_forgotten, why_no_way_back
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.parts import Parts
from dualstream.service.replica.point_in_time import NotKept, state_at
from dualstream.service.replica.requests import ControlRequest, Receipt, is_left
from dualstream.service.replica.state import Captured, UnreadableCopy, read_copy
from dualstream.solvers import Learner
from dualstream.wire.problem_json import Problem, quoted

VERSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Attempts to name a copy. A new copy disappears only if its writer seems to be dead, or if a
# concurrent writer of the same copy could not name it.
ATTEMPTS = 3


async def take_version(
    model: Model, journal: Journal, name: str | None, note: str, by: Author = SERVER
) -> tuple[Version, bool]:
    """Name the state at the journal's end. False: the name has this state already.

    Raises Problem 422 for a bad name; Conflict if the name has another state; TooManyVersions;
    MissingPosition if the journal has lost or trimmed this state since, as it does when a sample is
    unlearned.
    """
    if name is not None and not VERSION_NAME.fullmatch(name):
        detail = "a version's name has 1 to 128 characters of A-Z a-z 0-9 . _ - and begins with"
        raise Problem(422, "invalid-name", f"{detail} a letter or digit; got {quoted(name)}")
    await model.refresh()
    async with model.committer.between_groups():
        captured = await model.replica.captured()
    copy = await _usable_copy(lambda: captured, model.replica.spec)
    where = (model.record.id, model.record.incarnation)
    named = name or f"seq-{copy.seq}"
    for tried in range(ATTEMPTS):
        async with staged_copy(model, journal, copy) as staged:
            digest = staged.digest
            version = Version(named, copy.seq, copy.chain, digest, len(copy.data), note=note)
            try:
                change = by.change("version", name=named, digest=digest)
                answer = await journal.version_put(*where, version, change)
                staged.is_named = True
                return answer
            except MissingPosition:
                await model.committer.check_position(LogPosition(copy.seq, copy.chain))
                raise
            except UnknownCopy:
                if tried == ATTEMPTS - 1:
                    raise
    raise AssertionError("not reached")


async def known_version(model: Model, journal: Journal, name: str) -> Version:
    """The version with this name. Raises Problem 404."""
    record = model.record
    version = await journal.version_get(record.id, record.incarnation, name)
    if version is None:
        raise unknown_version(record.id, name)
    return version


def unknown_version(model_id: str, name: str) -> Problem:
    return Problem(404, "unknown-version", f"model {model_id!r} has no version {quoted(name)}")


async def roll_back_to_version(
    model: Model,
    journal: Journal,
    name: str,
    key: bytes | None,
    requested: bytes,
    by: Author = SERVER,
) -> tuple[Rollback, Receipt]:
    """Replace the state by that of a version.

    Raises Problem 404; 410 if a sample was unlearned after the version, or the journal has lost its
    records; 503 if the copy is damaged; MissingPosition if the journal loses records in between.
    """
    version = await known_version(model, journal, name)
    position = await model.position()
    _refuse(model, why_no_way_back(model.replica, version.seq))
    try:
        await fetch_copy(model.replica, version.digest, journal)
    except UnreadableCopy as error:
        raise unreadable_version(name, error) from error
    order = Rollback(version.digest, version.seq, name)
    request = ControlRequest.of(order, key, requested, by=by, held=position)
    try:
        return order, await model.submit(request)
    except UnknownCopy:
        raise unknown_version(model.record.id, name) from None


async def roll_back_to_seq(
    model: Model,
    journal: Journal,
    seq: int,
    key: bytes | None,
    requested: bytes,
    by: Author = SERVER,
) -> tuple[Rollback, Receipt]:
    """Replace the state by the state at `seq`.

    Raises Problem 410 if the journal no longer has it; MissingPosition if the journal loses records
    in between.
    """
    _refuse(model, why_forgotten(model.replica, seq))
    record = await journal.get(model.record.id)
    try:
        then = await state_at(model.replica.features, journal, record, seq)
    except NotKept as error:
        raise Problem(410, "not-kept", str(error), first=error.first, last=error.last) from None
    except (Forked, Trimmed) as error:
        raise unavailable(f"the journal changed during the rollback, retry: {error}") from None
    copy = await _usable_copy(then.capture, then.spec)
    for tried in range(ATTEMPTS):
        async with staged_copy(model, journal, copy) as staged:
            order = Rollback(staged.digest, seq)
            # The journal may have been trimmed since the record was read.
            position = await model.position_beyond(LogPosition(record.seq, record.chain))
            _refuse(model, why_forgotten(model.replica, seq))
            if position is None:
                raise MissingPosition(record.id, record.seq, record.chain)
            try:
                request = ControlRequest.of(order, key, requested, by=by, held=position)
                receipt = await model.submit(request)
                staged.is_named = not is_left(receipt.position)
                return order, receipt
            except UnknownCopy:
                if tried == ATTEMPTS - 1:
                    raise
    raise AssertionError("not reached")


def _refuse(model: Model, why_not: str | None) -> None:
    """Raise Problem 410 before the append: a refused record would keep the copy in the store."""
    replica = model.replica
    if why_not is not None:
        first = replica.parts.forgotten_seq
        raise Problem(410, "not-kept", why_not, first=first, last=replica.seq)


def unreadable_version(name: str, error: UnreadableCopy) -> Problem:
    """Problem 503: the copy of a version is damaged, or cannot be fetched."""
    detail = f"version {name!r} cannot be read: {error}"
    return Problem(503, "unreadable-version", detail, retry_after_s=60)


async def _usable_copy(capture: Callable[[], Captured], spec: dict[str, Any]) -> Snapshot:
    """Encode a copy in a thread, and read it back there: only a copy that can be used is named.

    Raises Problem 503.
    """

    def encode() -> Snapshot:
        captured = capture()
        copy = captured.as_copy()
        digest = hashlib.sha256(copy.data).hexdigest()
        try:
            read_copy(copy.data, digest, spec, captured.header["incarnation"], captured.make_parts)
        except UnreadableCopy as error:
            raise unreadable_version(f"seq-{captured.seq}", error) from error
        return copy

    return await run_copy_in_thread(encode)


class LoadedVersion(NamedTuple):
    """The state of a version in memory, for predictions."""

    learner: Learner
    parts: Parts
    seq: int
    chain: str
    bytes: int
    lock: asyncio.Lock
    """Predictions take turns: a learner has one set of scratch arrays."""

    def serving(self) -> asyncio.Lock:
        """See Replica.serving."""
        return self.lock


MAX_LOADED_VERSIONS = 8
"""Versions in memory for predictions, per worker."""
MAX_LOADED_VERSIONS_BYTES = 256 * 1024**2


class LoadedVersions:
    """LRU cache of the versions that this process predicts by, of all models.

    most        number of versions
    most_bytes  bytes of their copies together; the version used last always stays
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._loaded: OrderedDict[tuple[str, str], LoadedVersion] = OrderedDict()
        self._digests: dict[tuple[str, str], Version] = {}
        self._loading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._loaded)

    async def get(self, model: Model, journal: Journal, name: str) -> LoadedVersion:
        """The version with this name. Raises Problem 404, 503 if it is damaged."""
        version = await self._named(model, journal, name)
        key = (model.record.incarnation, version.digest)
        if key not in self._loaded:
            async with self._loading:  # another request may have loaded it
                if key not in self._loaded:
                    return await self._load(model, journal, version)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    async def _load(self, model: Model, journal: Journal, version: Version) -> LoadedVersion:
        try:
            state = await fetch_copy(model.replica, version.digest, journal)
        except UnreadableCopy as error:
            raise unreadable_version(version.name, error) from error
        loaded = LoadedVersion(
            state.learner, state.parts, version.seq, version.chain, version.bytes, asyncio.Lock()
        )
        self._loaded[model.record.incarnation, version.digest] = loaded
        self._discard_copy()
        return loaded

    async def _named(self, model: Model, journal: Journal, name: str) -> Version:
        """The version as the store has it. While the store is away, as last read."""
        key = (model.record.incarnation, name)
        try:
            version = await known_version(model, journal, name)
        except JournalUnavailable:
            if key not in self._digests:
                raise
            return self._digests[key]
        if len(self._digests) >= 10 * self._most:
            self._digests.clear()
        self._digests[key] = version
        return version

    def _discard_copy(self) -> None:
        while len(self._loaded) > 1 and (
            len(self._loaded) > self._most
            or sum(version.bytes for version in self._loaded.values()) > self._most_bytes
        ):
            self._loaded.popitem(last=False)


@dataclass(slots=True)
class StagedCopy:
    """A copy of a state in the store that may not have a name yet."""

    digest: str
    is_named: bool = False
    """Was the copy named? Set without asking the store, whose answer could get lost."""


@asynccontextmanager
async def staged_copy(
    model: "Model", journal: Journal, copy: Snapshot
) -> AsyncIterator[StagedCopy]:
    """Context manager: store a copy and delete it at the end unless it was named.

    The copy is kept if something else names it. A concurrent writer of the same copy may have
    to store it again.
    """
    digest = await journal.copy_put(model.record.id, model.record.incarnation, copy.data)
    staged = StagedCopy(digest)
    try:
        yield staged
    finally:
        if not staged.is_named:
            with suppress(JournalError):  # a later trim deletes old copies without a name
                await _discard_copy(model, journal, digest, copy.seq)


async def _discard_copy(model: Model, journal: Journal, digest: str, seq: int) -> None:
    """Delete the copy of the state at `seq` unless something names it."""
    where = (model.record.id, model.record.incarnation)
    try:
        await journal.copy_delete(*where, digest)
    except Conflict:
        return
    if model.replica.parts.forgetting is not None:
        await model.refresh()
        if why_forgotten(model.replica, seq) is not None:
            await journal.scrub(*where)
