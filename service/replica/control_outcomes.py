"""Outcomes of a model's last controls, for repeated requests.

They are bookkeeping next to the state, as first responses are, and snapshots carry them. So every
worker can answer a repeated control request. So can a replica that passed its own control by
loading a snapshot.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import ControlOutcome
from dualstream.solvers import CorruptState

# Kinds whose fields are part of the answer, or identify the control.
_WITH_FIELDS = ("rollback", "resume", "refit")


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of a control, with the fields of the control."""

    seq: int
    kind: str
    refusal: str | None
    rows: int | None
    fields: dict[str, Any]

    @property
    def verdict(self) -> ControlOutcome:
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
        if outcome is None or (outcome.kind, outcome.fields) != (
            control.kind,
            _fields_kept(control),
        ):
            return None
        return outcome.verdict

    def keep(self, seq: int, control: Control, verdict: ControlOutcome) -> None:
        fields = _fields_kept(control)
        self._put(KeptOutcome(seq, control.kind, verdict.refusal, verdict.rows, fields))

    def _put(self, outcome: KeptOutcome) -> None:
        self._by_seq[outcome.seq] = outcome
        while len(self._by_seq) > self._kept:
            del self._by_seq[next(iter(self._by_seq))]

    def state(self) -> dict[str, np.ndarray]:
        """Return the outcomes as arrays; no arrays if no outcome is kept."""
        if not self._by_seq:
            return {}
        outcome = msgspec.json.encode(list(self._by_seq.values()), order="sorted")
        return {"told": np.frombuffer(outcome, np.uint8).copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays no outcome is kept. Raises CorruptState."""
        self._by_seq.clear()
        if "told" not in arrays:
            return
        try:
            found = msgspec.json.decode(arrays["told"].tobytes(), type=list[KeptOutcome])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptState(f"the kept control outcomes are damaged: {error}") from error
        for outcome in found:
            self._put(outcome)


def _fields_kept(control: Control) -> dict[str, Any]:
    return dict(control.fields) if control.kind in _WITH_FIELDS else {}
