"""What goes wrong on the way to the journal, and one process's connection to it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import Enum
from random import Random
from typing import Any

import msgspec

from dualstream.service.journal.protocol import (
    ENTRY_BYTES,
    Announced,
    Appended,
    AppendRequest,
    AwaitingLabels,
    Base,
    Change,
    Entry,
    Head,
    JournalError,
    JournalUnavailable,
    KeyEntry,
    LogPosition,
    MissingPosition,
    ModelRecord,
    NewPendingRow,
    OutcomeUnknown,
    Overdue,
    Part,
    PendingRow,
    Revision,
    Snapshot,
    StoredCopy,
    Usage,
    Version,
)
from dualstream.service.journal.record import KeyKind
from tests.simulation.asking import Misread, misread
from tests.simulation.loop import Loop, Scheduler
from tests.simulation.store import Store

HOP_S = 0.002
"""A message takes up to this; a late one up to LATE times as long."""
LATE = 100
HEARD = 0.7
"""Of announcements, where something goes wrong."""


class Fault(Enum):
    """Everything that a schedule may have to live with."""

    REFUSED = "refused"
    """Nothing is done: JournalUnavailable."""
    LOST = "lost"
    """Nothing is done, and the caller cannot know: OutcomeUnknown."""
    UNANSWERED = "unanswered"
    """It is done, and the caller cannot know: OutcomeUnknown."""
    STRAY = "stray"
    """It is done long after OutcomeUnknown was raised."""
    LATE = "late"
    """It is done or answered late."""
    TWICE = "twice"
    """It is done again after it was answered."""
    OUTAGE = "outage"
    """For some time the store cannot be used."""
    TAIL = "tail"
    """The last entries vanish, keys and nonces with them."""
    ROT = "rot"
    """A byte of a stored snapshot changes, or one of a model's head as a process reads it."""
    REMADE = "remade"
    """The model is deleted and made again under everyone who uses it."""
    CRASH = "crash"
    """A worker loses its memory and starts again."""
    HANGUP = "hangup"
    """A client leaves before it is answered."""
    EVICTED = "evicted"
    """A model leaves a worker's memory."""
    SLOW = "slow"
    """Learning takes so long that batches are cut and learned in threads."""


ON_THE_WAY = (Fault.REFUSED, Fault.LATE, Fault.LOST, Fault.UNANSWERED, Fault.STRAY, Fault.TWICE)
# What may befall a call that reads, one that writes, one that deletes no other than was meant, and
# an append, which may be repeated blindly.
_READ, _WRITE, _DELETE, _APPEND = ON_THE_WAY[:2], ON_THE_WAY[:4], ON_THE_WAY[:5], ON_THE_WAY
RATES = (0.02, 0.06, 0.2)
Lags = tuple[float, float]
"""How long a call is on its way beyond what is usual, and its answer."""
NO_LAG: Lags = (0.0, 0.0)
LONG_S = 1.0


class Network:
    """The way between the processes and the store, with the faults that this schedule has."""

    def __init__(self, scheduler: Scheduler, store: Store) -> None:
        self.scheduler, self.store = scheduler, store
        self.chance: Random = scheduler.chance
        self.happened: set[Fault] = set()
        self.is_down = False
        self.tells_bases = False
        """Whether the store tells in one step what a replica begins from."""
        self.misread = 0.0
        """How often a process reads a damaged head while it loads a model."""
        self.trace: Callable[[str], None] | None = None
        self.next: Fault | None = None
        """What befalls the next call in any case, where it can."""
        self.listeners: list[Callable[[Announced], None]] = []
        self._rates: list[tuple[Fault, float]] = []
        self._appended: dict[tuple[str, bytes, str], int] = {}

    def break_down(self) -> None:
        """From now on there are faults."""
        self._rates = [
            (fault, self.chance.choice(RATES)) for fault in ON_THE_WAY if self.chance.random() < 0.3
        ]

    def heal(self) -> None:
        self._rates = []
        self.is_down = False
        self.misread = 0.0

    def done_at(self, name: str, given: Any, result: Any) -> int:
        """Step at which it was done; for a repeated append, the step of the first one.

        A repeated answer does not show what happened to the log since.
        """
        if name != "append" or result is None:
            return self.scheduler.steps
        where = (given[0].incarnation, given[0].nonce, result.chain)
        return self._appended.setdefault(where, self.scheduler.steps)

    def announce(self, model: str, seq: int) -> None:
        """Notify all subscribers of an append; while there are faults, some do not get it."""
        for listener in self.listeners:
            if not self._rates or self.chance.random() < HEARD:
                self.scheduler.at(HOP_S * self.chance.random(), listener, Announced(model, seq))

    def misreads(self, record: ModelRecord) -> Misread | None:
        """Damaged head that a load gets instead of this one, mostly None."""
        log = self.store.logs.get(record.id)
        if not self.misread or self.chance.random() >= self.misread or log is None:
            return None
        self.happened.add(Fault.ROT)
        beyond = self.chance.choice((0, 0, 4))
        got = misread(record, beyond)
        if self.trace is not None:
            self.trace(f"the head of {log.id} is read as {_short(got)}")
        return Misread(got, record.chain, log, log.writes, beyond)

    def fault(self, possible: Sequence[Fault]) -> Fault | None:
        """What befalls the next call, mostly nothing."""
        if self.store.most_nonces is not None:
            # What comes so late that a thousand others came between lay in no connection's buffer.
            possible = [fault for fault in possible if fault not in (Fault.STRAY, Fault.TWICE)]
        if self.next in possible:
            fault, self.next = self.next, None
            self.happened.add(fault)
            return fault
        if not self._rates:
            return None
        luck = self.chance.random()
        for fault, rate in self._rates:
            luck -= rate
            if luck < 0:
                if fault not in possible:
                    return None
                self.happened.add(fault)
                return fault
        return None


LagOf = Callable[[str, str], Lags]
StandsAt = Callable[[str], LogPosition | None]


class Connection:
    """The journal as one process has it: every call goes over the network.

    `stands_at`    the position of the local replica of a model, between two groups
    `lag_of`       how much longer than usual a call, mostly of some model, takes in each direction
    `answered_at`  by model, when the last append was done whose answer this process saw and which
                   shows a fork
    `read_at`      when the store last returned entries after a seq, by incarnation and seq
    `unheld`       positions that the store does not hold, or that its head shows to be lost:
                   incarnation, position, and time of the request
    `clients`      number of clients that wait for a model by its id, which may have to be loaded
    `loads`        the damaged head that each of these models got last
    """

    def __init__(
        self, network: Network, loop: Loop, name: str, lag_of: LagOf, stands_at: StandsAt
    ) -> None:
        self.name = name
        self._stands_at = stands_at
        self._lag_of = lag_of
        self.answered_at: dict[str, int] = {}
        self.read_at: dict[tuple[str, int], int] = {}
        self.unheld: list[tuple[str, LogPosition, int]] = []
        self.clients: Counter[str] = Counter()
        self.loads: dict[str, Misread | None] = {}
        self._network, self._loop = network, loop
        self._at = network.scheduler.at

    def append(self, request: AppendRequest) -> "asyncio.Future[Appended]":
        parts, kept, incarnation = request.parts, request.held, request.incarnation
        inputs = msgspec.structs.replace(request, parts=tuple(parts))
        query, got = self._network.scheduler.steps, self._loop.create_future()
        lag = self._lag_of(_kind_of(parts, kept), request.model)
        answer = self._sent(_APPEND, "append", inputs, lag=lag)

        def see(_: object) -> None:
            if got.cancelled():
                return
            if kept is not None and isinstance(got.exception(), MissingPosition):
                self.unheld.append((incarnation, kept, query))
            # An append that only moves a cursor is not compared with a replica.
            if not parts or got.exception() is not None:
                return
            appended, at = answer.result()
            if appended.entries or not appended.more:  # else all that it tells is to read
                self.answered_at[incarnation] = max(at, self.answered_at.get(incarnation, 0))

        got.add_done_callback(see)  # just before its waiter is called back
        answer.add_done_callback(lambda _: _pass_on(answer, got))
        return got

    async def open(self) -> None:
        await self._call(_READ, "count")

    async def close(self) -> None:
        pass

    async def ping(self, writes: bool = False) -> None:
        await self.open()

    def log_name(self, model: str) -> str:
        return f"the log of {model}"

    def durability(self) -> str:
        return "memory"

    async def claim_identity(self, mine: str) -> str:
        return (await self._call(_WRITE, "claim_identity", mine))[0]

    async def identity(self) -> str | None:
        """Immediate: no process adopts the store here, and a read of the identity never fails."""
        return self._network.store.identity

    async def adopt_identity(self, mine: str) -> None:
        await self._call(_WRITE, "adopt_identity", mine)

    async def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        return (await self._call(_WRITE, "create", model, spec, given, change))[0]

    async def get(self, model: str) -> ModelRecord:
        record: ModelRecord = (await self._call(_READ, "get", model))[0]
        bad = self.loads.get(model)
        return record if bad is None else misread(record, bad.beyond)

    async def base(self, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        if self._network.tells_bases:
            base: Base = (await self._call(_READ, "base", model))[0]
        else:
            record = (await self._call(_READ, "get", model))[0]
            base = Base(record, await self.snapshot_get(model, record.incarnation))
        if model not in self.loads:
            return base
        self.loads[model] = bad = self._network.misreads(base.record)
        return base if bad is None else msgspec.structs.replace(base, record=bad.got)

    async def heads(self, models: Sequence[str]) -> "Sequence[Head | JournalUnavailable | None]":
        stood = [self._stands_at(model) for model in models]
        heads, at = await self._call(_READ, "heads", tuple(models))
        for model, position, head in zip(models, stood, heads, strict=True):
            if position is not None and head is not None and head.seq <= position.seq:
                is_behind = head.seq < position.seq
                if is_behind or (
                    head.chain != position.chain and self._stands_at(model) == position
                ):
                    self.unheld.append((head.incarnation, position, at))
        return heads  # type: ignore[no-any-return]

    async def revision(self) -> Revision | None:
        revision: Revision = (await self._call(_READ, "revision"))[0]
        return revision if self._network.tells_bases else None

    async def announcements(self) -> "AsyncGenerator[Announced, None]":
        heard = asyncio.Queue[Announced]()
        self._network.listeners.append(heard.put_nowait)
        try:
            yield Announced()
            while True:
                yield await heard.get()
        finally:
            self._network.listeners.remove(heard.put_nowait)

    async def count(self) -> int:
        return (await self._call(_READ, "count"))[0]

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: LogPosition | None = None,
    ) -> None:
        await self._call(_DELETE, "delete", model, incarnation, change, at)

    async def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> "list[Entry]":
        result, at = await self._call(_READ, "read", model, incarnation, after, limit_bytes)
        if result:
            self.read_at[incarnation, after] = at
        return result  # type: ignore[no-any-return]

    async def known(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> "list[KeyEntry | None]":
        return (await self._call(_READ, "known", model, incarnation, tuple(keys)))[0]

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        count: int = (await self._call(_WRITE, "remember", model, incarnation, tuple(rows)))[0]
        return count

    async def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> "list[PendingRow | None]":
        return (await self._call(_READ, "remembered", model, incarnation, tuple(keys)))[0]

    async def awaiting_labels(self) -> "list[AwaitingLabels]":
        return (await self._call(_READ, "awaiting_labels"))[0]

    async def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        return (await self._call(_WRITE, "overdue", model, incarnation, limit))[0]

    async def forget_labelled(self, model: str, incarnation: str, key: bytes) -> None:
        await self._call(_WRITE, "forget_labelled", model, incarnation, key)

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        await self._call(_WRITE, "trim", model, incarnation, through, behind)

    async def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        inputs = (model, incarnation, seq, chain, data, replaces)
        request = self._network.scheduler.steps
        try:
            return (await self._call(_WRITE, "snapshot_put", *inputs))[0]
        except MissingPosition:
            self.unheld.append((incarnation, LogPosition(seq, chain), request))
            raise

    async def snapshots(self, model: str, incarnation: str) -> "list[LogPosition]":
        return (await self._call(_READ, "snapshots", model, incarnation))[0]

    async def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        return (await self._call(_READ, "snapshot_get", model, incarnation, n))[0]

    async def usage(self, model: str, incarnation: str) -> Usage:
        return (await self._call(_READ, "usage", model, incarnation))[0]

    async def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        await self._call(_WRITE, "snapshots_drop", model, incarnation, before)

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        return (await self._call(_WRITE, "copy_put", model, incarnation, data))[0]

    async def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        return (await self._call(_READ, "copy_get", model, incarnation, digest))[0]

    async def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        await self._call(_WRITE, "copy_delete", model, incarnation, digest)

    async def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        inputs = (model, incarnation, version, change)
        return (await self._call(_WRITE, "version_put", *inputs))[0]

    async def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        return (await self._call(_READ, "version_get", model, incarnation, name))[0]

    async def versions(self, model: str, incarnation: str) -> "list[Version]":
        return (await self._call(_READ, "versions", model, incarnation))[0]

    async def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> "list[StoredCopy]":
        return (await self._call(_READ, "copies", model, incarnation, with_partial))[0]

    async def scrub(self, model: str, incarnation: str) -> bool:
        return (await self._call(_WRITE, "scrub", model, incarnation))[0]

    async def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        return (await self._call(_WRITE, "version_delete", model, incarnation, name, change))[0]

    async def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        return (await self._call(_READ, "cursor", model, incarnation, name))[0]

    async def cursors(self, model: str, incarnation: str, prefix: str) -> dict[str, str]:
        return (await self._call(_READ, "cursors", model, incarnation, prefix))[0]

    async def list(self, after: str = "", limit: int = 100) -> "list[ModelRecord]":
        return (await self._call(_READ, "list", after, limit))[0]

    async def _call(self, possible: Sequence[Fault], name: str, *args: Any) -> tuple[Any, int]:
        """What the store answered, and at which step it did what was asked."""
        if self._loop.is_dying:
            raise asyncio.CancelledError
        lag = self._lag_of(name, args[0]) if args else NO_LAG
        return await self._sent(possible, name, *args, lag=lag)  # type: ignore[no-any-return]

    def _sent(
        self, possible: Sequence[Fault], name: str, *args: Any, lag: Lags = NO_LAG
    ) -> "asyncio.Future[Any]":
        """Told by what `_call` returns, once the call is answered."""
        fault = self._network.fault(possible)
        answer = self._loop.create_future()
        hop = HOP_S * self._network.chance.random()
        call = (name, args)
        if fault is None:
            there, back = lag
            do = self._do if there < LONG_S else self._do_unless_dead
            self._at(hop + there, do, answer, call, back)
        elif fault is Fault.LATE:
            times, again = self._network.chance.choice(((1, LATE), (LATE, 1), (LATE, LATE)))
            self._at(times * hop, self._do, answer, call, again * hop)
        elif fault is Fault.TWICE:
            self._at(hop, self._do, answer, call, 0.0)
            self._at(LATE / 4 * hop, self._do, None, call, 0.0)
        elif fault is Fault.REFUSED:
            self._at(hop, self._fail, answer, JournalUnavailable("planted: refused"), name)
        else:
            if fault is not Fault.LOST:
                there = hop if fault is Fault.UNANSWERED else LATE * hop
                self._at(there, self._do, None, call, 0.0)
            self._at(2 * hop, self._fail, answer, OutcomeUnknown(f"planted: {fault.value}"), name)
        return answer

    def _fail(self, answer: Any, error: JournalError, name: str) -> None:
        self._tell(name, error)
        if not answer.done():
            answer.set_exception(error)

    def _do_unless_dead(self, *args: Any) -> None:
        """What is on its way for so long waits in its process, and dies with it."""
        if not self._loop.is_dead:
            self._do(*args)

    def _do(self, answer: Any, call: tuple[str, Any], back: float) -> None:
        """The request has come to the store."""
        name, inputs = call
        error: JournalError | None = None
        result = None
        try:
            if self._network.is_down:
                raise JournalUnavailable("planted: outage")
            result = getattr(self._network.store, name)(*inputs)
        except JournalError as refusal:
            error = refusal
        self._tell(name, error or result, inputs)
        if name == "append" and result is not None and result.seq is not None:
            self._network.announce(inputs[0].model, result.seq)
        if answer is not None:
            done = (result, self._network.done_at(name, inputs, result))
            if back:
                self._at(back, self._deliver, answer, done, error)
            else:
                self._deliver(answer, done, error)

    def _deliver(self, answer: Any, done: tuple[Any, int], error: JournalError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(done)
        else:
            answer.set_exception(error)

    def _tell(self, name: str, result: Any, given: Any = ()) -> None:
        trace = self._network.trace
        if trace is not None:
            trace(f"{self.name} {name}{_short(given)} -> {_short(result)}")


def _kind_of(parts: Sequence[Part], held: LogPosition | None) -> str:
    """What comes with an append: `enter` is a refit, `control` what was made of another state."""
    if held is None:
        return "append"
    return "enter" if parts[0].key is not None and parts[0].key[0] == KeyKind.REFIT else "control"


def _short(value: Any) -> str:
    """A value on one line, for a trace."""
    match value:
        case bytes():
            return value.hex()[:8] if len(value) <= 16 else f"{len(value)} bytes"
        case str():
            return value[:8]
        case Part():
            return f"{value.count} under {_short(value.key)}" if value.key else str(value.count)
        case Entry():
            return f"{value.first_seq}-{value.seq} {value.chain[:8]}"
        case AppendRequest():
            return _short(msgspec.structs.astuple(value))
        case Appended():
            entries = _short(value.entries)
            return f"{value.seq}: {value.previous[:8]} -> {value.chain[:8]}, before it {entries}"
        case ModelRecord() | Snapshot():
            return f"{value.seq} {value.chain[:8]}"
        case Base():
            snapshot = "" if value.snapshot is None else f", snapshot {_short(value.snapshot)}"
            return f"{_short(value.record)}{snapshot}, entries {_short(value.entries)}"
        case tuple() | list():
            return "(" + ", ".join(map(_short, value)) + ")"
        case Exception():
            return f"{type(value).__name__}: {value}"
    return str(value)


def _pass_on(answer: "asyncio.Future[Any]", got: "asyncio.Future[Any]") -> None:
    """Pass on an answer, without the step, unless the waiter is gone."""
    if got.cancelled():
        return
    error = answer.exception()
    if error is not None:
        got.set_exception(error)
    else:
        got.set_result(answer.result()[0])
