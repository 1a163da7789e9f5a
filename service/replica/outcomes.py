"""Outcomes of applied entries: of controls, for repeated requests, and of appends under way.

The outcomes of a model's last controls are bookkeeping next to the state, as first responses are,
and snapshots carry them. So every worker can answer a repeated control request. So can a replica
that passed its own control by loading a snapshot.

An appended entry may reach its replica among entries read from the journal, or during a rebuild.
The code that applies it stores the outcome under the nonce of the append, for the committer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dualstream.service.journal.protocol import Entry
from dualstream.service.journal.record import Control
from dualstream.solvers import CorruptState, Outcome
from dualstream.solvers.protocols.member_learner import MemberView


@dataclass(frozen=True, slots=True)
class ControlOutcome:
    """Outcome of a control: done, or refused with a reason and without any change."""

    refusal: str | None = None
    member: MemberView | None = None
    """The added or promoted member, as it was right after the control."""
    rows: int | None = None
    """Rows of a refit that were still retained, or quarantined rows that were learned."""


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of a control, with the fields of the control."""

    seq: int
    kind: str
    refusal: str | None
    rows: int | None
    fields: dict[str, Any]

    @property
    def control_outcome(self) -> ControlOutcome:
        """The outcome, without the added or promoted member: that member has changed since."""
        return ControlOutcome(self.refusal, rows=self.rows)


class ControlOutcomes:
    """Outcomes of the last `kept` controls, by seq."""

    __slots__ = ("_by_seq", "_kept")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_seq: dict[int, KeptOutcome] = {}

    def __len__(self) -> int:
        return len(self._by_seq)

    def at(self, seq: int) -> KeptOutcome | None:
        """Return the outcome of the control at `seq`, if it is kept."""
        return self._by_seq.get(seq)

    def of(self, seq: int, control: Control) -> ControlOutcome | None:
        """Return the outcome of this control, appended at `seq`, if it is kept.

        If the journal lost the control, another one may have its seq: then None.
        """
        outcome = self.at(seq)
        if outcome is None or outcome.kind != control.kind:
            return None
        if outcome.fields and outcome.fields != control.fields:
            return None
        return outcome.control_outcome

    def keep(self, seq: int, control: Control, outcome: ControlOutcome, with_fields: bool) -> None:
        """Keep an outcome and, if asked, the fields of the control."""
        fields = dict(control.fields) if with_fields else {}
        self._put(KeptOutcome(seq, control.kind, outcome.refusal, outcome.rows, fields))

    def _put(self, outcome: KeptOutcome) -> None:
        self._by_seq[outcome.seq] = outcome
        while len(self._by_seq) > self._kept:
            del self._by_seq[next(iter(self._by_seq))]

    def state(self) -> dict[str, np.ndarray]:
        """Return the outcomes as arrays; no arrays if no outcome is kept."""
        if not self._by_seq:
            return {}
        outcome = msgspec.json.encode(list(self._by_seq.values()), order="sorted")
        return {"json": np.frombuffer(outcome, np.uint8).copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays no outcome is kept. Raises CorruptState."""
        self._by_seq.clear()
        if "json" not in arrays:
            return
        try:
            outcomes = msgspec.json.decode(arrays["json"].tobytes(), type=list[KeptOutcome])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptState(f"the kept control outcomes are damaged: {error}") from error
        for outcome in outcomes:
            self._put(outcome)


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
