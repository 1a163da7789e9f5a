"""Archives: a dumped and restored model is the same to the bit, and a damaged one is refused."""

import asyncio
import hashlib
import io
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
import redis
from google_crc32c import value as crc32c
from typer.testing import CliRunner

from dualstream.service import cli
from dualstream.service.archive.dump import Refused
from dualstream.service.archive.format import KINDS, DamagedArchive
from dualstream.service.archive.restore import restore, run_restore
from dualstream.service.journal.protocol import (
    AppendRequest,
    Change,
    CursorMove,
    JournalError,
    NewPendingRow,
    Part,
    Version,
)
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.journal.redis import archive_access as redis_access
from dualstream.service.journal.redis.keys_and_values import MODELS, keys_of
from dualstream.service.journal.sqlite import pending_rows as sqlite_rows
from dualstream.service.settings import MAX_AUDIT_DAYS
from tests.fuzzing import SCALE
from tests.service.archive.support import (
    archive_of,
    bits,
    changes,
    dumped,
    everything,
    learn,
    learned,
    opened,
    served,
)
from tests.service.conftest import SPEC
from tests.service.journal.groups import keyed, rows
from tests.service.journal.leftovers import kept_bytes
from tests.shell import run_script
from tests.support import until

DOCUMENT = (Path(__file__).parents[3] / "docs/operate/archive.md").read_text()
SECRET = b"the sample that was unlearned"
MODELS_LEARNED = ("empty", "ids", "names")


@pytest.fixture(params=["sqlite-redis", "redis-sqlite", "sqlite-sqlite", "redis-redis"])
def stores(request, tmp_path):
    """The URLs of two empty stores."""
    urls = []
    for number, kind in enumerate(request.param.split("-")):
        if kind == "sqlite":
            urls.append(f"sqlite:///{tmp_path / f'{number}.db'}")
            continue
        server = request.getfixturevalue("redis_server")
        urls.append(f"redis://127.0.0.1:{server.port}/{number}")
        with redis.Redis.from_url(urls[-1]) as client:
            client.flushall()
    return urls


async def grown(journal, model: str, *texts: bytes):
    """The model, created if it does not exist, with one more entry for each text."""
    record, _ = await journal.create(model, b"{}", b"{}")
    for text in texts:
        parts = [Part(text, 1)]
        await journal.append(AppendRequest(model, record.incarnation, os.urandom(16), 10**9, parts))
    return await journal.get(model)


async def restored(journal, archive: bytes, is_store: bool = True) -> list[str]:
    """What a restore of the archive reports."""
    lines: list[str] = []
    await restore(journal, is_store, io.BytesIO(archive), lines.append)
    return lines


def test_a_restored_store_is_the_same_to_the_bit(stores):
    of, to = stores
    learned(of)

    async def run() -> None:
        async with opened(of, to) as (source, target):
            before = {model: await everything(source, model) for model in MODELS_LEARNED}
            archive = await dumped(source)
            lines = await restored(target, archive)
            assert lines == [
                "empty: restored up to seq 0",
                "ids: restored up to seq 30",
                "names: restored up to seq 33",
            ]
            for model, kept in before.items():
                assert await everything(target, model) == kept
                assert await everything(source, model) == kept
                assert await bits(target, model) == await bits(source, model)
            assert await target.identity() == await source.identity()
            assert [r.id for r in await target.list()] == list(before)
            result = await changes(source)
            names = ["create", "member_add", "version", "rollback"]
            actions = ["create", *names, "create", "delete", "create"]
            assert [one.change.action for one in result] == actions
            assert await changes(target) == result
            # Again, it changes nothing
            assert all("already in this store" in one for one in await restored(target, archive))
            assert await changes(target) == result
            for model, kept in before.items():
                assert await everything(target, model) == kept

    asyncio.run(run())
    # A server goes on there: it knows what was learned, and which rows wait for labels
    with served(to) as client, served(of) as old:
        first = learn(client, "ids", [{"x": [29, 0, 1, 0, 2], "y": 1, "id": "a29"}], "request 29")
        assert first.headers["Idempotency-Replayed"] == "true"
        samples = [{"x": [28, 0, 1, 0, 2], "y": 0, "id": "a28"}]
        again = learn(client, "ids", samples, "another key").json()
        assert again["duplicates"] == [{"index": 0, "seq": 29}]
        members = [each.get("/models/names/members").json() for each in (client, old)]
        assert members[0] == members[1]
        versions = [each.get("/models/names/versions").json() for each in (client, old)]
        assert versions[0] == versions[1] and "monday" in str(versions[0])
        labels = {"labels": [{"id": "late", "y": 1}, {"id": "never served", "y": 1}]}
        answers = [each.post("/models/names/labels", json=labels).json() for each in (client, old)]
        assert [(one["count"], one["rejected"]) for one in answers] == [(1, 1), (1, 1)]

    async def compare() -> None:
        async with opened(of, to) as (source, target):
            assert await bits(target, "names") == await bits(source, "names")

    asyncio.run(compare())


def test_one_model_is_restored_beside_others(stores):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            await grown(source, "a", b"1")
            await grown(source, "b", b"2", b"3")
            other = await grown(target, "c", b"4")
            archive = await dumped(source, "b")
            assert await restored(target, archive, is_store=False) == ["b: restored up to seq 2"]
            assert [record.id for record in await target.list()] == ["b", "c"]
            assert await target.get("c") == other
            assert await everything(target, "b") == await everything(source, "b")
            with pytest.raises(Refused, match="'b' exists in this store; delete it first"):
                await restored(target, archive, is_store=False)
            await target.delete("b")
            made = await grown(target, "b", b"5")
            with pytest.raises(Refused, match="'b' exists in this store; delete it first"):
                await restored(target, archive)
            assert await target.get("b") == made
            with pytest.raises(Refused, match="whole store; restore it with --all"):
                await restored(target, await dumped(source), is_store=False)
            assert [record.id for record in await target.list()] == ["b", "c"]

    asyncio.run(run())


def test_a_running_server_serves_a_model_that_was_deleted_and_restored(stores):
    """It goes on from the position of the archive, which is behind what this server has applied."""
    url, _ = stores
    samples = [{"x": [1, 0, 0, 0, 2], "y": 1}]
    with served(url) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        learn(client, "m", samples, "request 1")
        archive = asyncio.run(archive_of(url, "m"))
        learn(client, "m", samples, "request 2")
        client.delete("/models/m").raise_for_status()
        assert client.get("/models/m").status_code == 404
        asyncio.run(run_restore(url, False, io.BytesIO(archive), lambda line: None))
        again = learn(client, "m", samples, "request 1")
        assert again.headers["Idempotency-Replayed"] == "true"
        assert learn(client, "m", samples, "request 2").json()["seq"] == 2
        assert client.get("/models/m").json()["seq"] == 2
    with served(url) as client:
        assert client.get("/models/m").json()["seq"] == 2


def test_states_of_another_kind_of_machine_are_refused(stores):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            await source.claim_identity("one")
            await grown(source, "m", b"1")
            archive = await dumped(source)
            await target.claim_identity("another")
            await grown(target, "n", b"1")
            with pytest.raises(Refused, match="computed as 'one', this store's as 'another'"):
                await restored(target, archive)
            await target.delete("n")
            await restored(target, archive)
            assert await target.identity() == "one"

    asyncio.run(run())


def test_a_write_during_the_dump_is_in_it_whole_or_not_at_all(stores, monkeypatch):
    """Between any two reads a label comes, a key, a snapshot, a version, and rows are served."""
    reads = (
        *("get", "position", "versions", "copy_uses", "copy_get", "read", "snapshot_get", "known"),
    )
    monkeypatch.setattr(sqlite_rows, "ROWS_AT_ONCE", 50)

    async def run() -> None:
        async with opened(*stores) as (source, target):
            record = await grown(source, "m", b"first")
            log_id, count = ("m", record.incarnation), 0

            def key(number: int) -> bytes:
                return make_key(KeyKind.LABEL, f"row {number}")

            async def busy() -> None:
                nonlocal count
                count += 1
                label = Part(b"label %d" % count, 1, key(count), b"%016d" % count)
                parts = [keyed(f"request {count}", count), label]
                appended = await source.append(AppendRequest(*log_id, os.urandom(16), 10**9, parts))
                position = (appended.seq, appended.chain)
                await source.snapshot_put(*log_id, *position, b"state %d" % count)
                digest = await source.copy_put(*log_id, b"copy %d" % count)
                await source.version_put(*log_id, Version(f"v{count}", *position, digest, 7))
                await source.remember(*log_id, [NewPendingRow(key(10**6 + count), b"a later row")])

            await source.remember(*log_id, [NewPendingRow(key(n), b"row") for n in range(1, 200)])
            before = await source.get("m")
            await busy()
            for name in reads:
                true = getattr(source, name)

                async def then_busy(*args, true=true, **named):
                    answer = await true(*args, **named)
                    if not stopped:
                        await busy()
                    return answer

                monkeypatch.setattr(source, name, then_busy)
            kept_rows = source.kept_rows

            async def busy_pages(*args):
                async for page in kept_rows(*args):
                    yield page
                    if not stopped:
                        await busy()

            monkeypatch.setattr(source, "kept_rows", busy_pages)
            stopped = False
            archive = await dumped(source, "m")
            stopped = True
            monkeypatch.undo()
            await restored(target, archive)
            kept, now = await everything(target, "m"), await everything(source, "m")
            seq = kept["record"].seq
            assert before.seq < seq < now["record"].seq
            assert kept["entries"] == [one for one in now["entries"] if one.seq <= seq]
            assert kept["record"].chain == kept["entries"][-1].chain
            assert kept["keys"] == [one for one in now["keys"] if one.seq <= seq]
            assert kept["versions"] == [one for one in now["versions"] if one.seq <= seq]
            assert len(kept["versions"]) == len(kept["copies"]) > 1
            assert all(one is None or one[0] <= seq for one in kept["snapshots"])
            # Each row waits, or its label is there
            labels = {one.key for one in kept["keys"] if one.key[0] == key(0)[0]}
            waiting = {one.key for one in kept["waiting"] if one.body == b"row"}
            assert labels and not labels & waiting
            assert labels | waiting == {key(number) for number in range(1, 200)}

    asyncio.run(run())


def test_keys_that_are_removed_during_the_dump_hide_no_other_key(redis_server, monkeypatch):
    monkeypatch.setattr(redis_access, "KEYS_AT_ONCE", 3)

    async def run() -> None:
        async with opened(redis_server.url) as [journal]:
            with redis.Redis.from_url(redis_server.url) as client:
                client.flushall()
                record = await grown(journal, "m")
                for number in range(20):
                    parts = [rows(number, id=f"id {number}")]
                    await journal.append(
                        AppendRequest("m", record.incarnation, os.urandom(16), 0, parts)
                    )
                results = []
                async for page in journal.kept_keys("m", record.incarnation):
                    results += [key.key[1:] for key in page]
                    for _ in range(2):  # as an append does with the oldest
                        gone = client.lpop(keys_of("m").prefix + b"keyq")
                        client.hdel(keys_of("m").keys, gone[8:])
                    if len(results) == 6:
                        for _ in range(4):
                            client.lpop(keys_of("m").prefix + b"keyq")
                assert results == [b"id %d" % number for number in (*range(6), *range(8, 20))]

    asyncio.run(run())


class Cleaned:
    """A model with an unlearned sample, cleaned up in two steps."""

    async def make(self, journal) -> None:
        self.journal = journal
        record = await grown(journal, "m", SECRET)
        self.own = "m", record.incarnation
        await journal.snapshot_put(*self.own, 1, record.chain, b"state with " + SECRET)
        digest = await journal.copy_put(*self.own, b"copy with " + SECRET)
        await journal.version_put(*self.own, Version("v1", 1, record.chain, digest, 28))
        self.unnamed = await journal.copy_put(*self.own, b"another copy with " + SECRET)
        self.record = await grown(journal, "m", b"unlearn it")

    async def begin(self) -> None:
        await self.journal.snapshot_put(*self.own, 2, self.record.chain, b"clean state")
        await self.journal.snapshots_drop(*self.own, 2)
        await self.journal.trim(*self.own, 2, behind=0)

    async def end(self) -> None:
        await self.journal.version_delete(*self.own, "v1")
        await self.journal.copy_delete(*self.own, self.unnamed)
        assert await self.journal.scrub(*self.own)
        move = CursorMove("unlearned", None, "2")
        await self.journal.append(AppendRequest(*self.own, os.urandom(16), 2, (), move))


@pytest.mark.parametrize("when", ["before", "during", "half before, half during"])
def test_an_unlearned_sample_is_not_restored_with_the_note_that_it_is_gone(
    stores, monkeypatch, when
):
    cleaned = Cleaned()

    async def run() -> None:
        async with opened(*stores) as (source, target):
            await cleaned.make(source)
            true, is_to_clean = source.position, when != "before"

            async def then_cleaned(model):
                nonlocal is_to_clean
                result = await true(model)
                if is_to_clean:
                    is_to_clean = False
                    if when == "during":
                        await cleaned.begin()
                    await cleaned.end()
                return result

            if when != "during":
                await cleaned.begin()
            if when == "before":
                await cleaned.end()
            monkeypatch.setattr(source, "position", then_cleaned)
            archive = await dumped(source, "m")
            await restored(target, archive)
            kept = await everything(target, "m")
            noted = kept["cursors"] == {"unlearned": "2"}
            assert noted == (when != "half before, half during")
            assert SECRET not in str(kept).encode()
            await target.settle()
            if when == "before":
                assert SECRET not in archive
            assert SECRET not in kept_bytes(stores[1])

    asyncio.run(run())


def small(url: str) -> bytes:
    """An archive of one small model that has a section of each type."""

    async def run() -> bytes:
        async with opened(url) as [journal]:
            record = await grown(journal, "m", b"a body")
            log_id = ("m", record.incarnation)
            digest = await journal.copy_put(*log_id, b"a copy")
            await journal.version_put(*log_id, Version("v", record.seq, record.chain, digest, 6))
            await journal.snapshot_put(*log_id, record.seq, record.chain, b"a state")
            move = CursorMove("a cursor", None, "1")
            nonce = os.urandom(16)
            await journal.append(AppendRequest(*log_id, nonce, 1, [rows(1, id="id")], move, digest))
            await journal.remember(
                *log_id, [NewPendingRow(make_key(KeyKind.LABEL, "late"), b"a row")]
            )
            await journal.claim_identity("this machine")
            return await dumped(journal, "m")

    return asyncio.run(run())


def test_truncated_and_changed_archives_are_refused_and_change_nothing(tmp_path):
    """At each fifth byte in `make test`, at all in `make fuzz`."""
    archive = small(f"sqlite:///{tmp_path / 'of.db'}")
    to = f"sqlite:///{tmp_path / 'to.db'}"

    def contents() -> list[str]:
        with closing(sqlite3.connect(tmp_path / "to.db")) as connection:
            # But for the counters of numbers that were given out.
            return [line for line in connection.iterdump() if "sqlite_sequence" not in line]

    async def run() -> None:
        async with opened(to) as [target]:
            before = contents()
            step = max(1, int(1 / SCALE))
            damaged = [archive[:size] for size in range(0, len(archive), step)]
            for at in range(step // 2, len(archive), step):
                changed = bytes([archive[at] ^ (1 << at % 8)])
                damaged.append(archive[:at] + changed + archive[at + 1 :])
            damaged.append(archive + b"\0")
            for number, one in enumerate(damaged):
                with pytest.raises(DamagedArchive, match=r"byte \d+"):
                    await restored(target, one, is_store=False)
                if number % 50 == 0:
                    assert contents() == before
            assert contents() == before
            await restored(target, archive, is_store=False)
            assert [record.id for record in await target.list()] == ["m"]
            assert (await target.position("m")).cursors == {"a cursor": "1"}

    asyncio.run(run())


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_damaged_archive_changes_nothing_in_redis(redis_server, tmp_path, share):
    archive = small(f"sqlite:///{tmp_path / 'of.db'}")

    async def run() -> None:
        async with opened(redis_server.url) as [target]:
            with redis.Redis.from_url(redis_server.url) as client:
                client.flushall()
                with pytest.raises(DamagedArchive, match="is truncated: the file ends at byte"):
                    await restored(target, archive[: int(share * len(archive))])
                assert client.keys() == []

    asyncio.run(run())


def test_models_before_the_damage_are_restored(stores):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            for model in ("a", "b"):
                await grown(source, model, b"body of " + model.encode())
            archive = await dumped(source)
            at = archive.index(b"body of b")
            with pytest.raises(
                DamagedArchive, match=r"section \d+ \(ENTR\) at byte \d+ is damaged"
            ):
                await restored(target, archive[:at] + b"B" + archive[at + 1 :])
            assert [record.id for record in await target.list()] == ["a"]
            lines = await restored(target, archive)
            assert lines == ["a: already in this store, left unchanged", "b: restored up to seq 1"]
            assert await everything(target, "b") == await everything(source, "b")

    asyncio.run(run())


def test_a_server_that_replaces_the_targets_server_is_not_used(redis_server, tmp_path, monkeypatch):
    """It can lack what the other server had acknowledged."""
    of, to = f"sqlite:///{tmp_path / 'of.db'}", redis_server.url
    true, failed = redis_access.RedisArchiveAccess.stage_keys, []

    async def after_a_failover(self, staged, keys):
        if staged.name == "ids" and not failed:
            failed.append(staged)
            with redis.Redis.from_url(to) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        await true(self, staged, keys)

    learned(of)

    archive = asyncio.run(archive_of(of))

    def run() -> None:
        asyncio.run(run_restore(to, True, io.BytesIO(archive), lambda line: None))

    with redis.Redis.from_url(to) as client:
        client.flushall()
        monkeypatch.setattr(redis_access.RedisArchiveAccess, "stage_keys", after_a_failover)
        with pytest.raises(JournalError):
            run()
        assert failed and client.zrange(MODELS, 0, -1) == [b"empty"]
        run()
        assert client.zrange(MODELS, 0, -1) == [b"empty", b"ids", b"names"]

    async def compare() -> None:
        async with opened(of, to) as (source, target):
            for model in MODELS_LEARNED:
                assert await everything(target, model) == await everything(source, model)
            [waiting] = await target.awaiting_labels()
            assert (waiting.model, waiting.rows) == ("names", 1)

    asyncio.run(compare())


def test_keys_and_changes_stay_as_long_as_any_server_may_keep_them(redis_server, tmp_path):
    of, to = f"sqlite:///{tmp_path / 'of.db'}", redis_server.url
    with served(of) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        learn(client, "m", [{"x": [1, 0, 0, 0, 0], "y": 1}], "a key")

    archive = asyncio.run(archive_of(of))
    with redis.Redis.from_url(to) as target:
        target.flushall()
        asyncio.run(run_restore(to, True, io.BytesIO(archive), lambda line: None))
        mine = keys_of("m")
        for kept in (mine.keys, mine.prefix + b"keyq"):  # of an idle model all of them go at once
            assert target.ttl(kept) > 300 * 86400
        most_s = MAX_AUDIT_DAYS * 86400
        assert most_s - 60 < target.ttl(mine.audit) <= most_s


def test_changes_are_merged_in_the_order_of_their_times(stores):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            await source.create("m", b"{}", b"{}", Change("create"))
            old = await changes(source)
            await until_later(old[-1].time_ms)
            await target.create("m", b"{}", b"{}", Change("create", key="of the target"))
            await target.delete("m", None, Change("delete", key="of the target"))
            mine = await changes(target)
            await until_later(mine[-1].time_ms)
            await source.create("n", b"{}", b"{}", Change("create"))
            for _ in range(2):
                await restored(target, await dumped(source))
                assert await changes(target) == [*old, *mine, *(await changes(source))[1:]]

    asyncio.run(run())


async def until_later(time_ms: int) -> None:
    """Return once the clock shows a later time."""
    while time.time_ns() // 1_000_000 <= time_ms:
        await asyncio.sleep(0.001)


def test_commands_write_and_read_files(tmp_path):
    of, to = (f"sqlite:///{tmp_path / name}.db" for name in ("of", "to"))
    with served(of) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        client.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1}).raise_for_status()
    file = tmp_path / "m.archive"

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, [str(one) for one in arguments])
        return result.exit_code, result.output

    assert run("dump", "m", "--store", of, "--output", file) == (0, "m: dumped up to seq 1\n")
    assert run("restore", file, "--store", to) == (0, "m: restored up to seq 1\n")
    code, output = run("restore", file, "--store", to)
    assert (code, output) == (2, "model 'm' exists in this store; delete it first\n")
    file.write_bytes(file.read_bytes()[:-1])
    code, output = run("restore", file, "--store", f"{to}2")
    assert code == 1 and "section" in output and "(LAST) at byte" in output
    for wrong, message in (
        (("dump", "--store", of), "give a model id, or --all"),
        (("dump", "m", "--all", "--store", of), "give a model id, or --all"),
        (("dump", "n", "--store", of, "--output", file), "no model 'n'"),
        (("dump", "m", "--store", f"{of}x", "--output", file), "no file"),
        (
            ("dump", "m", "--store", of, "--output", tmp_path / "none" / "file"),
            f"the archive cannot be written: {tmp_path}/none/file.part: No such file",
        ),
        (("restore", tmp_path / "none", "--store", to), f"{tmp_path}/none: No such file"),
    ):
        code, output = run(*wrong)
        assert code == 2 and message in output.replace("\n", " "), output
    # The archive of the failed dump did not take the place of the file that was there
    assert file.exists() and not file.with_name("m.archive.part").exists()


def test_a_dump_into_a_pipe_or_through_a_link_leaves_it_in_place(tmp_path):
    of = f"sqlite:///{tmp_path / 'of.db'}"
    learned(of)
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for output in (pipe, link):
        command = ["dump", "names", "--store", of, "--output", str(output)]
        assert CliRunner().invoke(cli.app, command).exit_code == 0
    reader.join(60)
    assert pipe.is_fifo() and link.is_symlink()
    [piped] = read
    assert len(piped) == len(file.read_bytes())


def test_an_interrupt_ends_a_restore_that_waits_for_its_pipe(tmp_path):
    of, to = (f"sqlite:///{tmp_path / name}.db" for name in ("of", "to"))
    learned(of)
    archive = tmp_path / "names.archive"
    command = ["dump", "names", "--store", of, "--output", str(archive)]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    program = [sys.executable, "-m", "dualstream.service", "restore", "--store", to]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's `&` ignores it
    with subprocess.Popen(program, stdin=subprocess.PIPE, preexec_fn=heard) as process:
        process.stdin.write(archive.read_bytes()[:-1])
        process.stdin.flush()

        def is_staged() -> bool:
            with (
                suppress(sqlite3.OperationalError),
                closing(sqlite3.connect(tmp_path / "to.db")) as db,
            ):
                return bool(db.execute("SELECT count(*) FROM models").fetchone()[0])
            return False

        until(is_staged, 60)
        time.sleep(1)  # until it waits for the missing byte
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    with closing(sqlite3.connect(tmp_path / "to.db")) as db:
        assert db.execute("SELECT count(*) FROM models").fetchone() == (0,)


def test_commands_move_a_store_through_a_pipe(redis_server, tmp_path):
    of = f"sqlite:///{tmp_path / 'of.db'}"
    learned(of)
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    to = redis_server.url
    line = f"dualstream dump --all --store {of} | dualstream restore --all --store {to}"
    done = run_script(line, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert "names: dumped up to seq 33" in done.stderr
    assert done.stdout.splitlines()[-1] == "names: restored up to seq 33"

    async def compare() -> None:
        async with opened(of, redis_server.url) as (source, target):
            for model in MODELS_LEARNED:
                assert await everything(target, model) == await everything(source, model)
            assert await changes(target) == await changes(source)

    asyncio.run(compare())


# -- a reader by the words of docs/operate/archive.md, with struct and a CRC-32C alone -----------


def unpacked(data: bytes, at: int) -> tuple[object, int]:
    """The MessagePack value at `at`, and where it ends."""
    first, at = data[at], at + 1

    def number(layout: str) -> int | float:
        nonlocal at
        [results] = struct.unpack_from(">" + layout, data, at)
        at += struct.calcsize(">" + layout)
        return results

    def some(count: int) -> bytes:
        nonlocal at
        at += count
        return data[at - count : at]

    def values(count: int) -> list[object]:
        nonlocal at
        results = []
        for _ in range(count):
            value, at = unpacked(data, at)
            results.append(value)
        return results

    def pairs(count: int) -> dict:
        results = values(2 * count)
        return dict(zip(results[::2], results[1::2], strict=True))

    if first <= 0x7F:
        return first, at
    if first >= 0xE0:
        return first - 256, at
    if first <= 0x8F or first in (0xDE, 0xDF):
        count = first & 15 if first <= 0x8F else number("HI"[first - 0xDE])
        return pairs(count), at
    if first <= 0x9F or first in (0xDC, 0xDD):
        count = first & 15 if first <= 0x9F else number("HI"[first - 0xDC])
        return values(count), at
    if first <= 0xBF or first in (0xD9, 0xDA, 0xDB):
        count = first & 31 if first <= 0xBF else number("BHI"[first - 0xD9])
        return some(count).decode(), at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    if first in (0xC4, 0xC5, 0xC6):
        return some(number("BHI"[first - 0xC4])), at
    layouts = dict(zip(range(0xCB, 0xD4), "dBHIQbhiq", strict=True))
    return number(layouts[first]), at


def parsed(archive: bytes) -> list[tuple[str, object]]:
    """The sections by docs/operate/archive.md."""
    summed, at = archive[:21], 21
    assert summed == b"dualstream archive 1\n"
    sections = []

    def check() -> None:
        nonlocal at
        [checksum] = struct.unpack_from("<I", archive, at)
        assert checksum == crc32c(summed)
        at += 4

    while at < len(archive):
        begins = at
        kind, size = struct.unpack_from("<4sQ", archive, at)
        summed, at = summed + archive[at : at + 12], at + 12
        check()
        payload = archive[at : at + size]
        summed, at = summed + payload, at + size
        check()
        if kind == b"LAST":
            count, digest = struct.unpack("<Q32s", payload)
            assert count == len(sections)
            assert digest == hashlib.sha256(archive[:begins]).digest()
            assert at == len(archive)
            return sections
        if kind != b"COPY":
            value, end = unpacked(payload, 0)
            assert end == len(payload)
        sections.append((kind.decode(), payload if kind == b"COPY" else value))
    raise AssertionError("no section LAST")


def test_an_archive_is_as_the_document_says(stores):
    of, _ = stores
    learned(of)

    async def run() -> None:
        async with opened(of) as [source]:
            sections = parsed(await dumped(source))
            kept = {model: await everything(source, model) for model in MODELS_LEARNED}
            log = await changes(source)
        [opening] = sections[0][1]
        assert sections[0][0] == "ARCH" and opening["is_store"] is True
        of_model: dict[str, dict[str, list]] = {}
        for kind, rows_ in sections[1:]:
            if kind == "MODL":
                [got] = rows_
                result = of_model[got["record"]["id"]] = {"MODL": [got]}
            else:
                result.setdefault(kind, []).extend([rows_] if kind == "COPY" else rows_)
        positions = {"ENTR": "entries", "KEYS": "keys", "ROWS": "waiting", "VERS": "versions"}
        documented = set(re.findall(r"`([a-z_]+)`", DOCUMENT))
        for model, result in of_model.items():
            mine = kept[model]
            assert result["MODL"][0]["record"] == msgspec.structs.asdict(mine["record"])
            assert result["MODL"][0]["trimmed"] == mine["trimmed"]
            assert result["MODL"][0]["cursors"] == mine["cursors"]
            for kind, name in positions.items():
                assert result.get(kind, []) == [msgspec.structs.asdict(one) for one in mine[name]]
            snapshots = [(one["seq"], one["chain"], one["data"]) for one in result.get("SNAP", [])]
            assert snapshots == [one for one in reversed(mine["snapshots"]) if one]
            digests = [hashlib.sha256(data).hexdigest() for data in result.get("COPY", [])]
            assert digests == [copy.digest for copy, _ in mine["copies"]]
            fields = {
                name for kind in result if kind != "COPY" for row in result[kind] for name in row
            }
            assert fields - {"AUDT"} <= documented
        got = [one["change"]["action"] for one in of_model[MODELS_LEARNED[-1]]["AUDT"]]
        assert got == [one.change.action for one in log]

    asyncio.run(run())


def test_every_section_type_is_documented():
    named = re.findall(r"^\| `([A-Z]{4})` \|", DOCUMENT.split("## The fields")[0], re.M)
    assert {name.encode() for name in named} == KINDS and len(named) == len(KINDS)
