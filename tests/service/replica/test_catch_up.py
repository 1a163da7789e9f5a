"""Catching up to a given seq: what a replica reads from the store, and what it finds there."""

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dualstream.service.journal.protocol import AppendRequest, ModelChanged
from tests.service.replica.committer_bench import Bench, request, run
from tests.service.support import lose_last_entry


class Counted:
    """A journal, and how often each of its methods was called."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._journal, name)


async def append_elsewhere(bench: Bench, times: int, first: int = 0) -> int:
    """As another process does, an entry each time; the last seq."""
    seq = 0
    for number in range(first, first + times):
        where = (bench.replica.id, bench.replica.incarnation)
        nonce = number.to_bytes(16, "big")
        appended = await bench.faulty.append(
            AppendRequest(*where, nonce, 10**9, request(f"other {number}").parts)
        )
        seq = appended.seq or seq
    return seq


def count_calls(bench: Bench) -> Counter[str]:
    counted = bench.committer._journal = Counted(bench.faulty)  # type: ignore[assignment]
    return counted.calls


def test_a_seq_that_was_shown_takes_one_read_and_one_batch(tmp_path, monkeypatch):
    async def scenario(bench: Bench) -> None:
        await bench.send("own")
        seq = await append_elsewhere(bench, 30)
        learned: list[int] = []
        learn = bench.replica._learn_slice
        monkeypatch.setattr(
            bench.replica, "_learn_slice", lambda batch: learned.append(len(batch)) or learn(batch)
        )
        calls = count_calls(bench)
        await bench.committer.refresh(seq)
        assert calls == {"read": 1} and learned == [30]
        await bench.committer.refresh(seq - 1)
        assert calls == {"read": 1} and bench.replica.seq == seq

    run(tmp_path, scenario)


def test_what_lies_beyond_the_seq_comes_with_the_same_read(tmp_path):
    async def scenario(bench: Bench) -> None:
        seq = await append_elsewhere(bench, 5)
        calls = count_calls(bench)
        await bench.committer.refresh(2)
        assert calls == {"read": 1} and bench.replica.seq == seq

    run(tmp_path, scenario)


def test_many_reads_end_with_the_one_that_reaches_the_seq(tmp_path, monkeypatch):
    monkeypatch.setattr("dualstream.service.replica.replica.READ_BYTES", 1)

    async def scenario(bench: Bench) -> None:
        await append_elsewhere(bench, 6)
        calls = count_calls(bench)
        await bench.committer.refresh(4)
        assert calls == {"read": 4} and bench.replica.seq == 4

    run(tmp_path, scenario)


def test_seq_beyond_the_journal_is_compared_with_its_head(tmp_path):
    async def scenario(bench: Bench) -> None:
        seq = await append_elsewhere(bench, 3)
        await bench.committer.refresh(seq)
        calls = count_calls(bench)
        await bench.committer.refresh(seq + 1)
        assert calls == {"read": 1, "get": 1} and bench.replica.seq == seq

    run(tmp_path, scenario)


@pytest.mark.parametrize("grown", [0, 1, 4])
def test_a_fork_is_found_by_what_is_read_or_by_the_head(tmp_path: Path, grown: int):
    """The journal ends before the replica, at its seq with other entries, or beyond it."""

    async def scenario(bench: Bench) -> None:
        bench.on_fork = forks.append
        seq = await append_elsewhere(bench, 3)
        await bench.committer.refresh(seq)
        lose_last_entry(sqlite3.connect(next(tmp_path.glob("*.db"))))
        await append_elsewhere(bench, grown, first=100)
        await bench.committer.refresh(seq + 1)
        assert bench.replica.seq == seq - 1 + grown and not bench.replica.is_forked

    forks: list[str] = []
    run(tmp_path, scenario)
    assert forks == ["m"]


def test_recreated_model_is_reported(tmp_path):
    async def scenario(bench: Bench) -> None:
        spec = (await bench.faulty.get("m")).spec
        await bench.faulty.delete("m")
        await bench.faulty.create("m", spec, spec)
        await bench.committer.refresh(1)

    with pytest.raises(ModelChanged):
        run(tmp_path, scenario)
