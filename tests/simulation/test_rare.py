"""Planted faults that no schedule is known to find are found by tests of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service import (
    test_bare,
    test_catalog,
    test_committer,
    test_guard_replicas,
    test_unlearning,
    test_unread,
    test_versions,
)
from tests.simulation.bugs import RARE

Test = Callable[[str, pytest.MonkeyPatch], object]
"""Of a store in some file."""


def _overtaken(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.unread.MOST_GROUPS", 0)  # as in all of that file
    test_unread.test_a_snapshot_may_come_meanwhile_of_what_was_appended_since(store, monkeypatch)


FOUND_BY: dict[str, Test] = {
    "turn taken for an empty line": lambda store, _: (
        test_committer.test_what_waits_may_be_drained_when_all_who_waited_for_it_have_left(
            Path(store.removeprefix("sqlite:///")).parent
        )
    ),
    "snapshot that overtook a first append": _overtaken,
    "bare group told by the whole model": (
        test_bare.test_rows_are_answered_where_others_write_the_snapshot_that_is_due
    ),
    "refused when it is journalled": lambda store, _: (
        test_unlearning.test_nothing_is_kept_of_a_state_that_a_sample_is_unlearned_under(
            store, goes_back=True
        )
    ),
    "gone model held": lambda store, monkeypatch: (
        test_catalog.test_a_load_that_is_overtaken_is_held_by_nobody(store, monkeypatch, "deleted")
    ),
    "gone back to a snapshot of what is lost": lambda store, _: (
        test_versions.test_state_of_lost_records_is_no_state_of_the_journal(store, 10)
    ),
    "quarantine to come trimmed away": lambda store, _: (
        test_guard_replicas.test_every_replica_learns_what_is_learned_by_hand(store)
    ),
}
ELSEWHERE = {
    # Planted by the tests themselves: test_many_models.py, and twice test_replay.py
    "rollback goes on where its model was let go",
    "copy gone with its record",
    "head lost before it is read",
}


def test_each_is_found():
    assert set(RARE) == {*FOUND_BY, *ELSEWHERE}


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("name", FOUND_BY)
def test_planted_fault_fails_its_test(
    name: str, is_planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And it alone: as it is called here, the test passes without it."""
    store = f"sqlite:///{tmp_path / 'journal.db'}"
    if not is_planted:
        FOUND_BY[name](store, monkeypatch)
        return
    failures = Exception, pytest.fail.Exception
    with RARE[name].planted(), pytest.raises(failures) as failure:
        FOUND_BY[name](store, monkeypatch)
    # By what the fault does, and not by a slip of its own.
    assert failure.traceback[-1].path.parent.name != "bugs"
