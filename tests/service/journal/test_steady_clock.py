"""Keys and waiting rows on SQLite age by a clock that a jump of the wall clock does not move."""

import io
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dualstream.service.archive.dump import dump
from dualstream.service.archive.restore import restore
from dualstream.service.journal.protocol import Limits, NewPendingRow
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.journal.sqlite import steady_clock
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, keyed, rows

pytestmark = pytest.mark.anyio

HOUR_S = 3600
LIMITS = Limits(key_ttl_s=HOUR_S, remember_s=HOUR_S)
WALL_NS = time.time_ns()
LABEL = make_key(KeyKind.LABEL, "a")


@dataclass
class Host:
    """The clocks of a host, which stand still until a test moves them."""

    patch: pytest.MonkeyPatch
    since_boot_s: float = 100.0

    def set_wall(self, ahead_s: float) -> None:
        self.patch.setattr(time, "time_ns", lambda: WALL_NS + round(ahead_s * 1e9))

    def set_since_boot(self, seconds: float) -> None:
        self.since_boot_s = seconds
        self.patch.setattr(steady_clock, "since_boot_ms", lambda: round(1000 * seconds))

    def reboot(self, off_s: float, boot: str, wall_error_s: float = 0.0) -> None:
        self.set_since_boot(5.0)
        self.patch.setattr(steady_clock, "boot_id", lambda: boot)
        self.set_wall(off_s + wall_error_s)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(monkeypatch)
    host.set_wall(0.0)
    host.set_since_boot(100.0)
    monkeypatch.setattr(steady_clock, "boot_id", lambda: "first")
    return host


async def fill(log: Log) -> None:
    """A request with a key, a sample with an id, and a row that waits for 60 s."""
    await log.append(keyed("request", 1))
    await log.append(rows(2, id="sample"))
    waiting = [NewPendingRow(LABEL, b"row", b"default", 60.0)]
    await log.journal.remember(log.model, log.incarnation, waiting)


async def knows_keys(log: Log) -> bool:
    """Are the request and the sample known? A repetition of them, and appends in between."""
    for number in range(3):
        await log.append(rows(10 + number, id=f"other{time.monotonic_ns()}"))
        await log.append(rows(20 + number))
    results = [
        (await log.append(part)).positions[0].duplicate
        for part in (keyed("request", 1), rows(2, id="sample"))
    ]
    assert results[0] == results[1]
    return results[0]


async def is_due(log: Log) -> bool:
    [waiting] = await log.journal.awaiting_labels()
    assert bool((await log.journal.overdue(log.model, log.incarnation)).rows) == waiting.is_due
    return waiting.is_due


async def age_s(log: Log) -> float:
    [row] = await log.journal.remembered(log.model, log.incarnation, [LABEL])
    assert row is not None
    return row.age_s


@pytest.mark.parametrize("jump_s", [2 * HOUR_S, 24 * HOUR_S, 3e8, -2 * HOUR_S, -1e9])
async def test_a_jump_of_the_wall_clock_ages_nothing(
    sqlite_store: Store, host: Host, jump_s: float
) -> None:
    async with sqlite_store.journal(LIMITS) as journal, sqlite_store.journal(LIMITS) as other:
        log = await Log.create(journal)
        theirs = Log(other, log.record)
        await fill(log)
        host.set_wall(jump_s)
        assert await knows_keys(theirs) and not await is_due(theirs)
        await other.ping(writes=True)
        host.set_wall(0.0)
        assert await knows_keys(log) and not await is_due(log)
        assert await age_s(log) == 0.0
        # A process that starts during the jump.
        host.set_wall(jump_s)
        async with sqlite_store.journal(LIMITS) as late:
            assert await knows_keys(Log(late, log.record))


async def test_keys_and_rows_age_by_the_clock_since_boot(sqlite_store: Store, host: Host) -> None:
    async with sqlite_store.journal(LIMITS) as journal:
        log = await Log.create(journal)
        await fill(log)
        host.set_since_boot(100.0 + 59.0)
        assert not await is_due(log)
        assert await age_s(log) == pytest.approx(59.0)
        host.set_since_boot(100.0 + 61.0)
        assert await is_due(log) and await knows_keys(log)
        host.set_since_boot(100.0 + HOUR_S + 1)
        assert not await knows_keys(log)


@pytest.mark.parametrize(
    ("off_s", "wall_error_s", "is_known"),
    [(30.0, 0.0, True), (0.9 * HOUR_S, 0.0, True), (30.0, -1e9, True), (HOUR_S, 1e8, False)],
)
async def test_clock_continues_after_a_reboot(
    sqlite_store: Store, host: Host, off_s: float, wall_error_s: float, is_known: bool
) -> None:
    async with sqlite_store.journal(LIMITS) as journal:
        log = await Log.create(journal)
        await fill(log)
        host.set_since_boot(160.0)
        await journal.ping(writes=True)
    host.reboot(off_s, "second", wall_error_s)
    async with sqlite_store.journal(LIMITS) as journal, sqlite_store.journal(LIMITS) as other:
        log = Log(journal, log.record)
        passed = min(max(0.0, off_s + wall_error_s), HOUR_S)
        if passed < HOUR_S:
            assert await age_s(log) == pytest.approx(60.0 + passed)
        assert await knows_keys(Log(other, log.record)) is is_known


async def test_a_store_of_an_earlier_version_begins_with_the_wall_clock(
    sqlite_store: Store, host: Host
) -> None:
    async with sqlite_store.journal(LIMITS) as journal:
        log = await Log.create(journal)
        await fill(log)
        await journal._writer.run(
            lambda db: db.execute("DELETE FROM store WHERE name = 'clock'").close()
        )
    host.set_since_boot(7.0)
    async with sqlite_store.journal(LIMITS) as journal:
        assert await knows_keys(Log(journal, log.record))


async def test_a_full_disk_does_not_keep_a_process_from_starting(
    sqlite_store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_store.journal(LIMITS) as journal:
        log = await Log.create(journal)
        await fill(log)
    host.reboot(10.0, "second")
    monkeypatch.setattr(steady_clock.SteadyClock, "write", _full)
    async with sqlite_store.journal(LIMITS) as journal:
        assert (await journal.get(log.model)).seq == 2
        assert await age_s(Log(journal, log.record)) == pytest.approx(10.0)


def _full(clock: object, db: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_the_clock_of_this_host_is_there() -> None:
    before = steady_clock.since_boot_ms()
    time.sleep(0.01)
    assert steady_clock.since_boot_ms() >= before + 5
    if Path("/proc/sys/kernel/random/boot_id").exists():
        assert steady_clock.boot_id() == steady_clock.boot_id() != ""


async def test_keys_and_rows_keep_their_ages_in_an_archive(
    sqlite_store: Store, host: Host, tmp_path: Path
) -> None:
    """Also if the host was off for a night: the store's clock is then behind others."""
    async with sqlite_store.journal(LIMITS):
        pass
    host.reboot(12 * HOUR_S, "second")
    new = Store(f"sqlite:///{tmp_path / 'new.db'}")
    async with sqlite_store.journal(LIMITS) as journal, new.journal(LIMITS) as other:
        log = await Log.create(journal)
        await fill(log)
        for source, target in ((journal, other), (other, journal)):
            archive = io.BytesIO()
            await dump(source, log.model, archive, lambda line: None)
            await source.delete(log.model)
            archive.seek(0)
            await restore(target, False, archive, lambda line: None)
            moved = Log(target, log.record)
            assert await knows_keys(moved) and not await is_due(moved)
            assert await age_s(moved) == pytest.approx(0.0, abs=1.0)  # archives have whole seconds
