"""What few schedules meet: a journal that changes between two reads of it."""

import asyncio
import contextlib
from typing import Any

import pytest

from dualstream.service.features import ALL
from dualstream.service.journal.protocol import AppendRequest, Base, ModelRecord, Trimmed
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.copies import Rollback
from dualstream.service.replica.recovery import ATTEMPTS, NoBase, recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.service.replica.state import UnreadableCopy
from tests.simulation import models
from tests.simulation.bugs import BUGS
from tests.simulation.log import Log
from tests.simulation.store import Store


class Vanishing:
    """A journal that loses its last entry, and takes another, after each of the first reads."""

    def __init__(self, store: Store, log: Log, times: int) -> None:
        self._store, self._log, self._times = store, log, times

    async def base(self, model: str) -> Base:
        return Base(self._store.get(model))

    async def get(self, model: str) -> ModelRecord:
        return self._store.get(model)

    async def snapshot_get(self, *args: Any) -> None:
        return None

    async def copy_get(self, *args: Any) -> bytes | None:
        return self._store.copy_get(*args)

    async def read(self, *args: Any) -> Any:
        entries = self._store.read(*args)
        if self._times:
            self._times -= 1
            self._log.lose(2, now=0, with_snapshots=True)
            for _ in range(2):
                append(self._store, self._log)
        return entries


def append(store: Store, log: Log) -> None:
    nonce = (1000 * len(log.cut) + len(log.entries)).to_bytes(16, "big")
    part = models.learn_request(3, None).parts[0]
    store.append(AppendRequest(log.id, log.incarnation, nonce, log.seq, [part]))


def loaded(times: int) -> tuple[Replica, Log, Store]:
    store = Store(answer_bytes=1)
    kind = models.kinds()[0]
    record, _ = store.create("m", kind.spec, kind.as_given)
    log = store.log("m", record.incarnation)
    append(store, log)
    append(store, log)
    replica = Replica(record, ALL)
    asyncio.run(recover(replica, Vanishing(store, log, times)))  # type: ignore[arg-type]
    return replica, log, store


def test_replay_restarts_if_entries_vanish_between_two_reads():
    replica, log, _ = loaded(1)
    assert (replica.seq, replica.chain) == (log.seq, log.chain)
    assert replica.learner.samples == log.seq == 2 * models.size_of(3)


class LosingAfterItsHead(Vanishing):
    """A journal that loses two entries between the first look at its head and what is read then."""

    async def get(self, model: str) -> ModelRecord:
        record = self._store.get(model)
        if self._times:
            self._times -= 1
            self._log.lose(2, now=0, with_snapshots=True)
        return record

    async def read(self, *args: Any) -> Any:
        return self._store.read(*args)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_refresh_looks_again_where_the_head_was_lost_before_it_was_read(is_planted):
    bug = BUGS["head lost before it is read"]
    with bug.planted() if is_planted else contextlib.nullcontext():
        replica, log, store = loaded(0)
        append(store, log)  # which the head counts but no entry holds
        journal = LosingAfterItsHead(store, log, 1)
        asyncio.run(Committer(journal, replica, 1.0).refresh())  # type: ignore[arg-type]
    assert ((replica.seq, replica.chain) == (log.seq, log.chain)) is not is_planted


class TrimmedMeanwhile(Vanishing):
    """A journal that is trimmed to its end between what is read and the copy that it names."""

    async def copy_get(self, *args: Any) -> bytes | None:
        self._store.trim(self._log.id, self._log.incarnation, self._log.seq)
        return await super().copy_get(*args)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_copy_that_went_with_the_record_that_names_it_is_no_lost_one(is_planted):
    bug = BUGS["copy gone with its record"]
    replica, log, store = loaded(0)
    digest = store.copy_put(log.id, log.incarnation, replica.capture().as_copy().data)
    parts = ControlRequest.of(Rollback(digest, replica.seq)).parts
    store.append(
        AppendRequest(log.id, log.incarnation, bytes(range(16)), log.seq, parts, copy=digest)
    )
    journal: Any = TrimmedMeanwhile(store, log, 0)
    with bug.planted() if is_planted else contextlib.nullcontext():
        with pytest.raises(UnreadableCopy if is_planted else Trimmed):
            asyncio.run(replica.catch_up(journal))


def test_replay_gives_up_where_that_does_not_end():
    with pytest.raises(NoBase):
        loaded(10 * ATTEMPTS)
