"""What became of entries, for a committer that waits for one.

An entry that a committer appended may reach its replica among others that were read, or by a
rebuilding: whoever applies it so leaves the outcome under the nonce of the append.
"""

from collections.abc import Sequence

from dualstream.service.journal.protocol import Entry
from dualstream.service.replica.controls import ControlOutcome
from dualstream.solvers import Outcome

Applied = Outcome | ControlOutcome
"""What became of one group: of its rows, or of its control."""


def record_outcomes(
    watched: dict[bytes, Applied | None],
    entries: Sequence[Entry],
    done: Sequence[tuple[int, Applied]],
) -> None:
    """Keep what a committer waits for; `done` holds what was applied, by its first seq."""
    for entry in entries:
        if entry.nonce in watched:
            found = within(done, entry.first_seq, entry.seq)
            if found is not None:
                watched[entry.nonce] = found


def clear_outcomes(watched: dict[bytes, Applied | None]) -> None:
    """Nothing is kept for any committer: it came of a state that is thrown away."""
    watched.update(dict.fromkeys(watched))


def within(done: Sequence[tuple[int, Applied]], first_seq: int, seq: int) -> Applied | None:
    """What became of the records first_seq .. seq, all rows or one control; None where unknown."""
    outcomes = []
    for begins, applied in done:
        if isinstance(applied, ControlOutcome):
            if begins == first_seq:
                return applied
        elif begins <= seq and first_seq < begins + len(applied):
            outcomes.append(applied[max(0, first_seq - begins) : seq + 1 - begins])
    joined = Outcome.joined(outcomes) if outcomes else None
    return joined if joined is not None and len(joined) == seq + 1 - first_seq else None
