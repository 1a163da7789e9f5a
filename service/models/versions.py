"""Versions of a model: taken by name, gone back to, and loaded to predict by."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dualstream.service.journal.audit import SERVER, Author
from dualstream.service.journal.protocol import Conflict, Journal, JournalError, Snapshot
from dualstream.service.replica.controls import Rollback, why_forgotten, why_no_way_back
from dualstream.wire.problems import Problem, unavailable

if TYPE_CHECKING:
    from dualstream.service.models.model import Model


from dualstream.service.journal.protocol import (
    JournalUnavailable,
    NotHeld,
    Place,
    Trimmed,
    UnknownCopy,
    Version,
)
from dualstream.service.models.model import Model
from dualstream.service.replica.apply_control import fetch_copy
from dualstream.service.replica.point_in_time import NotKept, state_at
from dualstream.service.replica.receipts import Receipt, is_left
from dualstream.service.replica.recovery import Forked
from dualstream.service.replica.requests import ControlRequest
from dualstream.service.replica.state import UnreadableCopy
from dualstream.solvers import Learner
from dualstream.wire.problems import quoted

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# A copy that was just written is collected only where its writer seems to have died, or where
# another one has put it away as well and could not name it.
TRIES = 3


async def take_version(
    model: Model, journal: Journal, name: str | None, note: str, by: Author = SERVER
) -> tuple[Version, bool]:
    """Name the state at the journal's end; (it, False) where the name stands for it already.

    Raises Conflict where the name stands for another state; TooManyVersions; NotHeld where the
    journal has let go of this one while it was taken, as it does when a sample is unlearned, or has
    lost it.
    """
    if name is not None and not NAME.fullmatch(name):
        detail = "a version's name has 1 to 128 characters of A-Z a-z 0-9 . _ - and begins with"
        raise Problem(422, "invalid-name", f"{detail} a letter or digit, got {quoted(name)}")
    await model.refresh()
    async with model.committer.between_groups():
        captured = model.replica.capture()
    copy = await asyncio.to_thread(captured.as_copy)
    where = (model.record.id, model.record.incarnation)
    named = name or f"seq-{copy.seq}"
    for tried in range(TRIES):
        async with put_away(model, journal, copy) as away:
            digest = away.digest
            version = Version(named, copy.seq, copy.chain, digest, len(copy.data), note=note)
            try:
                change = by.change("version", name=named, digest=digest)
                told = await journal.version_put(*where, version, change)
                away.is_named = True
                return told
            except NotHeld:
                await model.committer.check_place(Place(copy.seq, copy.chain))
                raise
            except UnknownCopy:
                if tried == TRIES - 1:
                    raise
    raise AssertionError("not reached")


async def known_version(model: Model, journal: Journal, name: str) -> Version:
    """The version of this name. Raises Problem 404."""
    record = model.record
    version = await journal.version_get(record.id, record.incarnation, name)
    if version is None:
        raise unknown_version(record.id, name)
    return version


def unknown_version(model_id: str, name: str) -> Problem:
    return Problem(404, "unknown-version", f"model {model_id!r} has no version {quoted(name)}")


async def go_back_to_version(
    model: Model,
    journal: Journal,
    name: str,
    key: bytes | None,
    asked: bytes,
    by: Author = SERVER,
) -> tuple[Rollback, Receipt]:
    """Make the state that of a version.

    Raises Problem 404, 410 where it knows what was unlearned since or was lost by the journal, 503
    where it is damaged; NotHeld where the journal loses records meanwhile.
    """
    version = await known_version(model, journal, name)
    held = await model.place()
    _refuse(model, why_no_way_back(model.replica, version.seq))
    try:
        await fetch_copy(model.replica, version.digest, journal)
    except UnreadableCopy as error:
        raise _unreadable(name, error) from error
    order = Rollback(version.digest, version.seq, name)
    request = ControlRequest.of(order, key, asked, by=by, held=held)
    try:
        return order, await model.submit(request)
    except UnknownCopy:
        raise unknown_version(model.record.id, name) from None


async def go_back_to_seq(
    model: Model,
    journal: Journal,
    seq: int,
    key: bytes | None,
    asked: bytes,
    by: Author = SERVER,
) -> tuple[Rollback, Receipt]:
    """Make the state what it was at `seq`.

    Raises Problem 410 where that is no longer kept; NotHeld where the journal loses records
    meanwhile.
    """
    _refuse(model, why_forgotten(model.replica, seq))
    record = await journal.get(model.record.id)
    try:
        then = await state_at(journal, record, seq)
    except NotKept as error:
        raise Problem(410, "not-kept", str(error), first=error.first, last=error.last) from None
    except (Forked, Trimmed) as error:
        raise unavailable(f"the journal has changed meanwhile: {error}") from None
    copy = await asyncio.to_thread(then.capture().as_copy)
    for tried in range(TRIES):
        async with put_away(model, journal, copy) as away:
            order = Rollback(away.digest, seq)
            # It took its time, in which the journal may have been trimmed past where it ended then.
            held = await model.place_beyond(Place(record.seq, record.chain))
            _refuse(model, why_forgotten(model.replica, seq))
            if held is None:
                raise NotHeld(record.id, record.seq, record.chain)
            try:
                request = ControlRequest.of(order, key, asked, by=by, held=held)
                receipt = await model.submit(request)
                away.is_named = not is_left(receipt.placed)
                return order, receipt
            except UnknownCopy:
                if tried == TRIES - 1:
                    raise
    raise AssertionError("not reached")


def _refuse(model: Model, why_not: str | None) -> None:
    """Raise Problem 410 where the control would be refused: its record would keep the copy."""
    replica = model.replica
    if why_not is not None:
        first = replica.retained.unlearned_seq
        raise Problem(410, "not-kept", why_not, first=first, last=replica.seq)


def _unreadable(name: str, error: UnreadableCopy) -> Problem:
    detail = f"version {name!r} is of no use: {error}"
    return Problem(503, "unreadable-version", detail, retry_after_s=60)


class LoadedVersion(NamedTuple):
    """A version in memory, to predict by."""

    learner: Learner
    seq: int
    chain: str
    bytes: int


MAX_LOADED_VERSIONS = 8
"""Versions in memory for predictions, per worker."""
MAX_LOADED_VERSIONS_BYTES = 256 * 1024**2


class LoadedVersions:
    """The versions that this process predicted by last, of all models.

    most        so many of them
    most_bytes  so many bytes of their copies together; the one used last always stays
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._loaded: OrderedDict[tuple[str, str], LoadedVersion] = OrderedDict()
        self._digests: dict[tuple[str, str], Version] = {}
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._loaded)

    async def get(self, model: Model, journal: Journal, name: str) -> LoadedVersion:
        """The version of this name. Raises Problem 404, 503 where it is damaged."""
        version = await self._named(model, journal, name)
        place = (model.record.incarnation, version.digest)
        if place not in self._loaded:
            async with self._turn:  # whoever waits finds it loaded
                if place not in self._loaded:
                    return await self._load(model, journal, version)
        self._loaded.move_to_end(place)
        return self._loaded[place]

    async def _load(self, model: Model, journal: Journal, version: Version) -> LoadedVersion:
        try:
            state = await fetch_copy(model.replica, version.digest, journal)
        except UnreadableCopy as error:
            raise _unreadable(version.name, error) from error
        found = LoadedVersion(state.learner, version.seq, version.chain, version.bytes)
        self._loaded[model.record.incarnation, version.digest] = found
        self._let_go()
        return found

    async def _named(self, model: Model, journal: Journal, name: str) -> Version:
        """As the store has it; while it is away, as it was the last time."""
        place = (model.record.incarnation, name)
        try:
            version = await known_version(model, journal, name)
        except JournalUnavailable:
            if place not in self._digests:
                raise
            return self._digests[place]
        if len(self._digests) >= 10 * self._most:
            self._digests.clear()
        self._digests[place] = version
        return version

    def _let_go(self) -> None:
        while len(self._loaded) > 1 and (
            len(self._loaded) > self._most
            or sum(version.bytes for version in self._loaded.values()) > self._most_bytes
        ):
            self._loaded.popitem(last=False)


@dataclass(slots=True)
class StagedCopy:
    """A copy that is in the store."""

    digest: str
    is_named: bool = False
    """Whether its holder has named it. Nothing is asked of the store then: it answers at once, or
    what it tells may be lost by then."""


@asynccontextmanager
async def put_away(model: "Model", journal: Journal, copy: Snapshot) -> AsyncIterator[StagedCopy]:
    """A copy in the store, for whoever names it while this is held.

    If he does not, it stays only where something else names it. Others who put away the same may
    have to do it again.
    """
    digest = await journal.copy_put(model.record.id, model.record.incarnation, copy.data)
    away = StagedCopy(digest)
    try:
        yield away
    finally:
        if not away.is_named:
            with suppress(JournalError):  # it goes with a trim, once it has had no name for long
                await _let_go(model, journal, digest, copy.seq)


async def _let_go(model: "Model", journal: Journal, digest: str, seq: int) -> None:
    """Delete the copy of the state at `seq`, unless something names it."""
    where = (model.record.id, model.record.incarnation)
    try:
        await journal.copy_delete(*where, digest)
    except Conflict:
        return
    if model.replica.retained.why_not is None:
        await model.refresh()
        if why_forgotten(model.replica, seq) is not None:
            await journal.scrub(*where)
