"""Outcomes of appended entries that a committer waits for, by nonce.

An appended entry may reach its replica among entries read from the journal, or during a rebuild.
The code that applies it stores the outcome under the nonce of the append.
"""

from collections.abc import Sequence

from dualstream.service.journal.protocol import Entry
from dualstream.service.replica.controls import ControlOutcome
from dualstream.solvers import Outcome

Applied = Outcome | ControlOutcome
"""Outcome of one group: of its rows or of its control."""


def record_outcomes(
    watched: dict[bytes, Applied | None],
    entries: Sequence[Entry],
    done: Sequence[tuple[int, Applied]],
) -> None:
    """Store the outcomes of watched entries. `done` holds what was applied, by first seq."""
    for entry in entries:
        if entry.nonce in watched:
            found = within(done, entry.first_seq, entry.seq)
            if found is not None:
                watched[entry.nonce] = found


def clear_outcomes(watched: dict[bytes, Applied | None]) -> None:
    """Clear all outcomes: they belong to a state that is discarded."""
    watched.update(dict.fromkeys(watched))


def within(done: Sequence[tuple[int, Applied]], first_seq: int, seq: int) -> Applied | None:
    """Outcome of the records first_seq .. seq: all rows, or one control. None if it is unknown."""
    outcomes = []
    for begins, applied in done:
        if isinstance(applied, ControlOutcome):
            if begins == first_seq:
                return applied
        elif begins <= seq and first_seq < begins + len(applied):
            outcomes.append(applied[max(0, first_seq - begins) : seq + 1 - begins])
    joined = Outcome.joined(outcomes) if outcomes else None
    return joined if joined is not None and len(joined) == seq + 1 - first_seq else None
