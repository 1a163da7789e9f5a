"""Controls in the journal: applied in their place, once, alike by everyone who reads them."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.features.members.controls import Demote, MemberAdd, MemberRemove, Promote
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Part
from dualstream.service.journal.record import (
    KeyKind,
    UnknownRecord,
    decode_merged,
    encode_control,
    make_key,
)
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.solvers import Batch, make_learner, resolve_spec
from tests.history import Acknowledged, check_history
from tests.service.conftest import assert_problem
from tests.service.features.members.support import FEATURES, PAIR, SPARSE, learn, names
from tests.service.journal.faulty import Fault
from tests.service.replica.control_bench import Bench, benched, row_request, rows, run
from tests.service.support import bits, loaded, lose_last_entry, until_written

RDA = {field: value for field, value in SPARSE.items() if field != "name"}


def adding(name: str | None, **fields: Any) -> MemberAdd:
    spec = make_learner(resolve_spec(PAIR)).resolve_member(RDA | fields)
    return MemberAdd(spec, name)


def test_control_in_the_midst_of_waiting_rows_keeps_its_place(store):
    async def scenario(bench: Bench) -> None:
        receipts = await asyncio.gather(
            bench.learn(3, 1),
            bench.learn(4, 2),
            bench.order(adding("new")),
            bench.learn(5, 3),
            bench.order(Promote("new")),
            bench.learn(2, 4),
            bench.learn(1, 5),
        )
        assert [r.position.seq for r in receipts] == [3, 7, 8, 13, 14, 16, 17]
        assert bench.groups == [7, 0, 5, 0, 3], "a control is a group of its own"
        added = receipts[2].control_outcome.member
        assert (added.name, added.rows) == ("new", 0), "as it stood right after"
        # The same with the library alone.
        alone = make_learner(bench.replica.spec)
        alone.learn(Batch.concat([rows(3, 1), rows(4, 2)]))
        alone.add_member(ControlRequest.of(adding("new")).control.fields["spec"] | {"name": "new"})
        alone.learn(rows(5, 3))
        alone.promote("new")
        outcome = alone.learn(rows(2, 4))
        alone.learn(rows(1, 5))
        assert receipts[5].scores == outcome.scores.tolist()
        mine = bench.replica.learner.state()
        assert all(mine[k].tobytes() == a.tobytes() for k, a in alone.state().items())

    run(store, scenario, [Fault.LATE])


def test_entry_of_rows_and_controls_is_applied_in_order(store):
    async def scenario(bench: Bench) -> None:
        await bench.append(
            row_request(4, 1).parts[0],
            ControlRequest.of(adding("a")).parts[0],
            ControlRequest.of(Promote("a")).parts[0],
            row_request(1, 2).parts[0],
            row_request(1, 3).parts[0],
            ControlRequest.of(Demote()).parts[0],
        )
        await bench.learn(2, 4)
        assert bench.replica.seq == 11 and bench.replica.learner.samples == 8
        assert bench.names() == ["dual", "steps", "a"]
        added = bench.replica.learner.members()[2]
        assert added.rows == 4 and added.active

    run(store, scenario)


def test_replica_in_the_midst_of_an_entry_applies_the_rest(store):
    parts = [
        row_request(2, 1).parts[0],
        ControlRequest.of(adding("a")).parts[0],
        row_request(3, 2).parts[0],
        ControlRequest.of(Promote("a")).parts[0],
        row_request(1, 3).parts[0],
    ]

    async def scenario(bench: Bench) -> None:
        await bench.append(*parts)
        (entry,) = await bench.journal.read("m", bench.record.incarnation, 0)
        for stand in range(1, 8):
            bench.replica.seq = stand
            _, records, *_ = bench.replica._content_after([entry])
            sizes = [len(r) if isinstance(r, Batch) else r.kind for r in records]
            left = [1, 1, "member_add", 1, 1, 1, "promote", 1][stand:]
            assert sizes == _summed(left)
        bench.replica.seq = 0

    run(store, scenario)


def _summed(left: list[Any]) -> list[Any]:
    """Rows that stand side by side are one batch."""
    joined: list[Any] = []
    for one in left:
        if joined and one == 1 and isinstance(joined[-1], int):
            joined[-1] += 1
        else:
            joined.append(one)
    return joined


@pytest.mark.parametrize("fault", [Fault.UNANSWERED, Fault.LOST])
def test_dropped_answer_doubles_nothing(store, fault):
    async def scenario(bench: Bench) -> None:
        receipts = await asyncio.gather(
            bench.learn(2), bench.order(adding(None)), bench.learn(1), bench.order(Promote("rda-1"))
        )
        assert [r.position.seq for r in receipts] == [2, 3, 4, 5]
        assert receipts[1].control_outcome.member.name == "rda-1"
        assert bench.names() == ["dual", "steps", "rda-1"]

    run(store, scenario, [fault, fault, Fault.NONE, fault, Fault.UNANSWERED, Fault.REFUSED, fault])


def test_control_of_unknown_outcome_is_found_by_the_next_group(store):
    async def scenario(bench: Bench) -> None:
        key = make_key(KeyKind.REQUEST, "k")
        outcome = await asyncio.gather(bench.order(adding(None), key), return_exceptions=True)
        assert type(outcome[0]).__name__ == "OutcomeUnknown"
        assert bench.names() == ["dual", "steps"]
        bench.journal.faults = iter(())
        again = await bench.order(adding(None), key)
        assert (
            again.position.duplicate and again.position.seq == 1 and again.control_outcome is None
        )
        assert bench.names() == ["dual", "steps", "rda-1"]
        other = await bench.order(adding("x"), key)
        assert other.position.conflict and other.control_outcome is None

    run(store, scenario, [Fault.UNANSWERED] * 100, timeout_s=0.02)


def test_many_faults_in_any_order(store):
    rng = np.random.default_rng(5)
    kinds = [Fault.NONE, Fault.LOST, Fault.UNANSWERED, Fault.LATE, Fault.DELAYED]
    faults = [kinds[k] for k in rng.integers(0, len(kinds), 300)]

    async def client(bench: Bench, name: str) -> None:
        for n in range(6):
            await bench.learn(1 + n % 3, n)
            await bench.order(adding(name))
            await bench.order(Promote(name))
            await bench.order(Demote())
            await bench.order(MemberRemove(name))

    async def scenario(bench: Bench) -> None:
        bench.journal.delay_s = 0.001
        await asyncio.gather(*(client(bench, name) for name in "abc"))
        assert bench.replica.seq == 3 * (12 + 24)

    run(store, scenario, faults)


def test_outcome_comes_from_the_replica_that_applied_the_control(store):
    async def scenario(bench: Bench) -> None:
        append = bench.journal.append

        async def reluctant(*args: Any) -> Any:
            """Tells nothing of what came before, so that the replica reads its own entry, too."""
            return msgspec.structs.replace(await append(*args), entries=(), more=True)

        await bench.append(row_request(3).parts[0])
        bench.journal.append = reluctant
        receipt = await bench.order(adding("new"))
        assert receipt.position.seq == 4 and receipt.control_outcome.member.name == "new"
        refused = await bench.order(adding("new"))
        assert refused.control_outcome.refusal == "there is a member 'new' already"
        learned = await bench.learn(2)
        assert len(learned.scores) == 2

    run(store, scenario)


def test_outcome_comes_from_a_rebuilt_replica_too(tmp_path):
    import sqlite3

    async def scenario(bench: Bench) -> None:
        await bench.learn(2)
        await bench.order(adding("lost"))
        lose_last_entry(sqlite3.connect(tmp_path / "s.db"))
        receipt = await bench.order(adding("new"))
        assert receipt.position.seq == 3 and receipt.control_outcome.member.name == "new"
        assert bench.names() == ["dual", "steps", "new"]

    run(f"sqlite:///{tmp_path / 's.db'}", scenario)


def test_refresh_notices_a_fork(tmp_path):
    import sqlite3

    async def scenario(bench: Bench) -> None:
        await bench.learn(2)
        await bench.order(adding("lost"))
        lose_last_entry(sqlite3.connect(tmp_path / "s.db"))
        await bench.committer.refresh()
        assert bench.replica.seq == 2 and bench.names() == ["dual", "steps"]

    run(f"sqlite:///{tmp_path / 's.db'}", scenario)


def test_control_that_cannot_be_done_is_refused_by_all_alike(store, caplog):
    async def scenario(bench: Bench) -> None:
        await bench.append(ControlRequest.of(adding("a")).parts[0], row_request(2).parts[0])
        refused = await bench.order(adding("a"))
        assert refused.position.seq == 4
        assert refused.control_outcome.refusal == "there is a member 'a' already"
        assert (
            await bench.order(Promote("none"))
        ).control_outcome.refusal == "there is no member 'none'"
        assert (await bench.order(Demote())).control_outcome.refusal == "no member is promoted"
        assert (await bench.order(MemberRemove("a"))).control_outcome.refusal is None
        assert bench.replica.refused_controls == 3 and bench.replica.rejected == 0
        assert "member_add at seq 4 was refused: there is a member 'a' already" in caplog.text

    run(store, scenario)


def test_learner_without_members_refuses_every_control(store):
    spec = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}

    async def scenario(bench: Bench) -> None:
        for order in (adding("a"), MemberRemove("a"), Promote("a"), Demote()):
            assert (await bench.order(order)).control_outcome.refusal == "model 'm' has no members"
        await bench.learn(2)
        assert bench.replica.seq == 6 and bench.replica.refused_controls == 4

    run(store, scenario, spec=spec)


UNKNOWN = [
    ("pause", {}, None, "'pause'"),
    ("promote", {"name": "dual", "until": 7}, None, "until"),
    ("promote", {}, None, "name"),
    ("demote", {}, {"state": np.zeros(2)}, "'demote'"),
]


@pytest.mark.parametrize(("kind", "fields", "arrays", "named"), UNKNOWN)
def test_what_a_later_version_wrote_stops_the_replica_before_it(store, kind, fields, arrays, named):
    async def scenario() -> None:
        async with benched(store, PAIR, [], 1.0) as bench:
            await bench.append(row_request(3).parts[0])
            await bench.append(Part(encode_control(kind, fields, arrays), 1))
            before = bits(bench.replica)
            with pytest.raises(UnknownRecord, match=named):
                await bench.replica.catch_up(bench.journal)
            assert bits(bench.replica) == before and bench.replica.seq == 0

    asyncio.run(scenario())


def test_member_of_a_later_version_stops_the_replica(store):
    async def scenario() -> None:
        async with benched(store, PAIR, [], 1.0) as bench:
            await bench.append(row_request(3).parts[0])
            await bench.append(ControlRequest.of(MemberAdd({"algorithm": "deep"}, "a")).parts[0])
            with pytest.raises(UnknownRecord, match="deep"):
                await bench.replica.catch_up(bench.journal)
            assert bench.replica.seq == bench.replica.learner.samples == 0

    asyncio.run(scenario())


def test_two_processes_have_equal_bits(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=PAIR)
    other.get("/models/m")
    for turn, client in enumerate([one, other, one, other]):
        learn(client, 20, seed=turn)
        added = client.post("/models/m/members", json={"name": f"n{turn}", **RDA})
        assert added.status_code == 201
        learn(client, 5, seed=10 + turn)
    one.post("/models/m/members/n1/promote")
    learn(other, 3)
    one.delete("/models/m/promotion")
    assert one.delete("/models/m/members/n0").status_code == 204
    for client in (one, other):
        assert client.post("/models/m/members/dual/promote").status_code == 200
        assert names(client) == ["dual", "steps", "n1", "n2", "n3"]
    expected = bits(loaded(store))
    for client in (one, other):
        assert bits(client.app._registry.find("m").replica) == expected


def test_snapshot_after_a_change_of_members_restores(serve, store):
    client = serve(store=store, snapshot_every=10, keep_records=1000)
    client.put("/models/m", json=PAIR)
    learn(client, 9)
    assert client.post("/models/m/members", json=SPARSE).json()["seq"] == 10
    assert client.post("/models/m/members", json=SPARSE | {"name": "b"}).json()["seq"] == 11
    assert client.post("/models/m/members/b/promote").json()["seq"] == 12
    until_written(client)
    live = bits(client.app._registry.find("m").replica)

    async def taken() -> Any:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            return await journal.snapshot_get("m", record.incarnation)
        finally:
            await journal.close()

    assert 10 <= asyncio.run(taken()).seq <= 12
    assert bits(loaded(store)) == bits(asyncio.run(replayed_of(store))) == live


def test_preset_changed_in_every_way_has_equal_bits_everywhere(serve, store):
    one, other = (serve(store=store, snapshot_every=25, keep_records=1000) for _ in range(2))
    one.put("/models/m", json={"features": FEATURES, "algorithm": "portfolio"})
    other.get("/models/m")
    changes = [
        ("POST", "members", {"kind": "adagrad", "name": "late"}),
        ("DELETE", "members/dual-3", None),
        ("POST", "members/newton-row/promote", None),
        ("POST", "members/late/promote", None),
        ("DELETE", "promotion", None),
        ("POST", "members", {"algorithm": "rda", "scaling": "balanced"}),
        ("DELETE", "members/prior", None),
        ("POST", "members", {"kind": "prior"}),
        ("POST", "members/rda-1/promote", None),
    ]
    for turn, (method, path, body) in enumerate(changes):
        client = (one, other)[turn % 2]
        learn(client, 13, seed=turn)
        answer = client.request(method, f"/models/m/{path}", json=body)
        assert answer.status_code < 300, answer.text
    learn(one, 5)
    learn(other, 5)
    learn(one, 5)
    until_written(one), until_written(other)
    replayed = asyncio.run(replayed_of(store))
    assert replayed.seq == 9 * 14 + 15 and replayed.refused_controls == 0
    assert bits(loaded(store)) == bits(replayed)
    assert bits(one.app._registry.find("m").replica) == bits(replayed)


async def replayed_of(store: str) -> Replica:
    """A replica that has read the whole journal, and no snapshot."""
    journal = await open_journal(store)
    try:
        replica = Replica(await journal.get("m"), ALL)
        await replica.catch_up(journal)
        return replica
    finally:
        await journal.close()


def test_snapshot_from_before_controls_is_read(tmp_path):
    async def scenario(bench: Bench) -> None:
        await bench.learn(5)
        captured = bench.replica.capture()
        del captured.arrays["refused_controls"]
        snapshot = captured.encode()
        await bench.journal.snapshot_put(
            "m", bench.record.incarnation, snapshot.seq, snapshot.chain, snapshot.data
        )

    run(f"sqlite:///{tmp_path / 's.db'}", scenario)


@contextlib.contextmanager
def served(store: str):
    """The URL of a server in a process of its own, killed at the end."""
    server = ServerProcess(store, ("--snapshot-every", "7", "--keep-records", "1000"))
    try:
        yield server.url
    finally:
        server.kill()


# A server of its own for each of its lives takes long: one store here, the other one below.
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_kill_9_loses_no_change_of_members(store):
    acknowledged = []
    for life in range(3):
        with served(store) as url, httpx.Client(base_url=url, timeout=60) as client:
            assert client.put("/models/m", json=PAIR).status_code == (200 if life else 201)
            there = [m["name"] for m in client.get("/models/m/members").json()["members"]]
            assert there == ["dual", "steps", *(f"n{n}" for n in range(life))]
            for turn in range(3):
                key = f"{life}-{turn}"
                body = {"x": rows(4, turn).values.reshape(4, 5).tolist(), "y": [1, 0, 1, 0]}
                headers = {"idempotency-key": key}
                got = client.post("/models/m/learn", json=body, headers=headers).json()
                acknowledged.append(Acknowledged(key, got["seq"], got["count"]))
            added = client.post("/models/m/members", json={"name": f"n{life}", **RDA})
            assert added.status_code == 201
    replica = loaded(store)
    assert [view.name for view in replica.learner.members()] == ["dual", "steps", "n0", "n1", "n2"]
    assert replica.seq == 3 * 13

    async def check() -> None:
        journal = await open_journal(store)
        try:
            report = await check_history(journal, "m", acknowledged, samples=36)
            assert report.controls == 3
        finally:
            await journal.close()

    asyncio.run(check())


class Changer:
    """Adds, promotes, demotes and removes members, each until it is known to be done."""

    def __init__(self) -> None:
        self.url = ""
        self.stop = threading.Event()
        self.added: list[str] = []
        self.changes = 0

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.stop.is_set():
                name = f"n{len(self.added)}"
                steps = (
                    ("POST", "members", {"name": name, **RDA}, (200, 201)),
                    ("POST", f"members/{name}/promote", None, (200,)),
                    ("DELETE", "promotion", None, (200,)),
                    # 404: done already, and the answer was lost.
                    ("DELETE", f"members/{name}", None, (204, 404)),
                )
                if all(self._until_known(client, *step) for step in steps):
                    self.added.append(name)

    def _until_known(
        self, client: httpx.Client, method: str, path: str, body: Any, done: tuple[int, ...]
    ) -> bool:
        while not self.stop.is_set():
            try:
                answer = client.request(method, f"{self.url}/models/m/{path}", json=body)
            except httpx.TransportError:
                self.stop.wait(0.02)
                continue
            if answer.status_code in done:
                self.changes += 1
                return True
            assert answer.status_code == 503, answer.text
            self.stop.wait(0.02)
        return False


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_changes_under_way_at_kill_9_are_made_once(store):
    changer = Changer()
    thread = threading.Thread(target=changer.run)
    for life in range(3):
        with served(store) as url:
            httpx.put(f"{url}/models/m", json=PAIR, timeout=60).raise_for_status()
            changer.url = url
            if not life:
                thread.start()
            wanted = changer.changes + 10 + life
            while changer.changes < wanted:
                assert thread.is_alive()
                time.sleep(0.001)
    changer.stop.set()
    thread.join()
    replica = loaded(store)
    assert replica.refused_controls == 0
    assert len(replica.learner.members()) in (2, 3), "the last one may be there yet"

    async def journalled() -> list[str]:
        async with benched(store, PAIR, [], 1.0) as bench:
            entries = await bench.journal.read("m", bench.record.incarnation, 0)
            _, controls = decode_merged(b"".join(entry.body for entry in entries))
            return [c.fields["name"] for c in controls if c.kind == "member_add"]

    added = asyncio.run(journalled())
    assert added == [f"n{n}" for n in range(len(added))]
    assert len(changer.added) <= len(added) <= len(changer.added) + 1


def test_control_of_a_later_version_is_shown_by_the_routes(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=PAIR)

    async def append() -> None:
        async with benched(store, PAIR, [], 1.0) as bench:
            await bench.append(Part(encode_control("pause", {}), 1))

    asyncio.run(append())
    answer = client.post("/models/m/members", json=SPARSE)
    assert "'pause'" in assert_problem(answer, 503, "unreadable-journal")["detail"]
