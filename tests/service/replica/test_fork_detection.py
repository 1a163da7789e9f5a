"""Lineage: the cost of a fork follows from the positions of both sides."""

import random
from hashlib import sha1

import pytest

from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.protocol import Entry
from dualstream.service.replica.fork_detection import KEPT, Lineage, Lost
from tests.service.conftest import assert_problem
from tests.service.support import ADULT, learn_adult, lose_last_entry, replica_of, until_answered

START = first_chain("0" * 32)


def entries(seed: int, sizes: list[int], seq: int = 0, chain: str = START) -> list[Entry]:
    """Consecutive entries of these sizes."""
    results = []
    for number, size in enumerate(sizes):
        nonce = sha1(f"{seed} {number}".encode()).digest()[:16]
        chain = next_chain(chain, nonce)
        results.append(Entry(seq + 1, seq + size, nonce, chain, 0, b""))
        seq += size
    return results


def lineage_of(passed: list[Entry], kept: int | None = KEPT, first: Entry | None = None) -> Lineage:
    """Of a replica that began at the start, or with a snapshot behind `first`."""
    lineage = Lineage(kept)
    lineage.add(0, START) if first is None else lineage.add(first.seq, first.chain)
    lineage.add_entries(passed)
    return lineage


def test_entries_after_a_seq_are_counted_as_far_as_they_are_remembered():
    lineage = lineage_of(entries(0, [1, 4, 2]))
    assert [lineage.entries_after(seq) for seq in range(9)] == [3, 2, 2, 2, 2, 1, 1, 0, 0]
    short = lineage_of(entries(0, [1] * 4 * KEPT), KEPT)
    assert KEPT <= short.entries_after(0) <= 2 * KEPT


def test_what_was_applied_beyond_the_common_entries_is_lost(subtests):
    for seed in range(50):
        with subtests.test(seed=seed):
            rng = random.Random(seed)
            sizes = [rng.randint(1, 4) for _ in range(rng.randint(0, 30))]
            common = entries(seed, sizes)
            seq, chain = (common[-1].seq, common[-1].chain) if common else (0, START)
            mine = entries(
                seed + 1000, [rng.randint(1, 4) for _ in range(rng.randint(0, 9))], seq, chain
            )
            theirs = entries(
                seed + 2000, [rng.randint(1, 4) for _ in range(rng.randint(0, 9))], seq, chain
            )
            lineage, other = lineage_of(common + mine), lineage_of(common + theirs, kept=None)
            assert lineage.replace_with(other) == Lost(mine[-1].seq - seq if mine else 0, seq, True)
            # Once: from here on it is the other's.
            assert lineage._seqs == other._seqs and lineage._seqs is not other._seqs
            assert lineage.replace_with(other).records == 0


def test_what_lies_before_a_parting_is_not_known_to_be_on_the_path():
    common = entries(1, [2, 3])
    mine = entries(2, [4, 1], 5, common[-1].chain)
    theirs = entries(3, [1] * (3 * KEPT), 5, common[-1].chain)
    lineage, positions = lineage_of(common + mine), common + mine
    assert all(lineage.includes(entry.seq, entry.chain) for entry in positions)
    assert not lineage.includes(4, START) and not lineage.includes(9, mine[-1].chain)
    # Given a rebuilding that begins with a snapshot at seq 25
    other = lineage_of(theirs[20:30], first=theirs[19])
    lineage.replace_with(other)
    assert not any(lineage.includes(entry.seq, entry.chain) for entry in positions)
    assert not lineage.includes(10, mine[-1].chain) and lineage.includes(30, theirs[24].chain)
    # What is forgotten of later places is as good as ever
    for entry in theirs[30:]:
        lineage.add(entry.seq, entry.chain)
    assert lineage._seqs[0] > 30 and lineage.includes(25, START) and not lineage.includes(24, START)


def test_a_loss_that_began_before_all_that_is_known_is_shown_as_the_least_it_can_be():
    mine, theirs = entries(1, [2] * 30), entries(2, [2] * 30)
    # When the oldest of what is kept is lost, too
    short = Lineage(4)
    short.add_entries(mine)
    assert short.replace_with(lineage_of(theirs, None)) == Lost(60 - 53, 53, False)
    # The journal was read from a snapshot after the fork.
    after = lineage_of(theirs[20:], None, first=theirs[19])
    assert lineage_of(mine).replace_with(after) == Lost(60 - 39, 39, False)


@pytest.mark.parametrize(("has_diverged", "lost"), [(False, 0), (True, 1)])
def test_of_what_was_overtaken_something_is_lost_only_where_it_is_known_to_have_parted(
    has_diverged, lost
):
    theirs = entries(2, [2] * 30)
    later = lineage_of(entries(1, [2] * 5))
    later.has_diverged = has_diverged
    got = later.replace_with(lineage_of(theirs[20:], None, first=theirs[19]))
    assert (got.records, got.is_all) == (lost, not has_diverged)
    assert not later.has_diverged


def test_lineage_is_bounded_and_restarts_with_the_replica():
    lineage = Lineage(10)
    passed = entries(1, [1] * 100)
    for entry in passed:
        lineage.add(entry.seq, entry.chain)
        assert len(lineage._seqs) <= 20
    assert list(lineage._seqs)[-10:] == list(range(91, 101))
    lineage.add(0, START)
    assert list(lineage._seqs) == [0]
    lineage.begin(7, passed[6].chain)  # with a snapshot, as what lies before was refused
    assert list(lineage._seqs) == [7]
    long = lineage_of(entries(1, [1] * (KEPT + 9)), kept=None).trimmed()
    assert len(long._seqs) == KEPT


def lost_records(client) -> float:
    lines = client.get("/metrics").text.splitlines()
    name = 'dualstream_lost_records_total{model="m"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_what_a_store_has_lost_is_counted(serve, tmp_path):
    import sqlite3

    path = tmp_path / "lost.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=ADULT)
    for first in range(0, 30, 10):
        learn_adult(client, first, first + 10)
    learn_adult(client, 30, 35)
    lose_last_entry(sqlite3.connect(path))
    # The follower may find the loss first: then the rows are refused until the model is rebuilt.
    refused = []

    def learn():
        answer = learn_adult(client, 40, 43)
        refused.extend([answer] if answer.status_code == 503 else [])
        return answer

    assert until_answered(learn).json()["seq"] == 33
    assert not any("outcome" in answer.json() for answer in refused)
    assert lost_records(client) == 5


def test_what_was_lost_is_counted_once_by_a_rebuilding_that_comes_later(
    serve, no_follower, tmp_path, monkeypatch
):
    import sqlite3

    from dualstream.service.journal.protocol import JournalUnavailable

    path = tmp_path / "lost.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 10)
    learn_adult(client, 10, 14)
    lose_last_entry(sqlite3.connect(path))

    async def refuse(*_):
        raise JournalUnavailable("planted")

    forked = client.app._registry.find("m")
    with monkeypatch.context() as away:
        away.setattr(client.app._registry.journal, "base", refuse)
        assert learn_adult(client, 60, 65).json()["error"].startswith("planted")
    for _ in range(2):
        # A waiter for the forked replica's lock, such as its follower, is refused, ...
        with pytest.raises(JournalUnavailable, match="is being loaded again from its journal"):
            client.portal.call(forked.refresh)
        assert client.get("/models/m").json()["seq"] == 15  # ... and the next request loads it
        assert lost_records(client) == 4


ROUTES = [
    "",
    "/metrics",
    "/weights",
    "/certificate",
    "/members",
    "/members/compare?a=prior&b=hinge",
]


@pytest.mark.parametrize("route", ROUTES)
def test_earlier_request_sees_nothing_of_a_fork(no_follower, client, route, monkeypatch):
    """The registry is asked before, the replica after the fork was found."""
    client.put("/models/m", json={"features": ADULT["features"]})
    registry = client.app._registry
    result = registry.get

    async def get(model_id: str):
        model = await result(model_id)
        model.replica.is_forked = True
        return model

    monkeypatch.setattr(registry, "get", get)
    assert_problem(client.get(f"/models/m{route}"), 503, "store-unavailable")
    assert 'dualstream_seq{model="m"}' not in client.get("/metrics").text


def test_replicas_know_where_they_came_by(client):
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 10)
    learn_adult(client, 10, 20)
    assert list(replica_of(client).lineage._seqs) == [0, 10, 20]
