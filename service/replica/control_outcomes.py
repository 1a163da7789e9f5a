"""What became of a model's last controls, to be told again when their requests are repeated.

Kept beside the state, as first answers are, and carried along by snapshots: so whichever worker a
repetition meets knows whether the control was done or refused, and so does whoever asked for one
that his replica has come past by a snapshot.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import ControlOutcome
from dualstream.solvers import CorruptState

# Those whose fields are part of what is told, or say whose the control is.
_WITH_FIELDS = ("rollback", "resume", "refit")


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True):
    """A verdict, and what the control asked for."""

    seq: int
    kind: str
    refusal: str | None
    rows: int | None
    fields: dict[str, Any]

    @property
    def verdict(self) -> ControlOutcome:
        """Without the member that was added or promoted, which has gone on since."""
        return ControlOutcome(self.refusal, rows=self.rows)


class ControlOutcomes:
    """Those of the last controls, by their seqs; `kept` of them."""

    __slots__ = ("_by_seq", "_kept")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_seq: dict[int, KeptOutcome] = {}

    def __len__(self) -> int:
        return len(self._by_seq)

    def at(self, seq: int) -> KeptOutcome | None:
        """Of the control at `seq`, if it is kept."""
        return self._by_seq.get(seq)

    def of(self, seq: int, control: Control) -> ControlOutcome | None:
        """What became of this control, appended at `seq`, if it is kept.

        Another one stands there where the journal has lost this one since.
        """
        told = self.at(seq)
        if told is None or (told.kind, told.fields) != (control.kind, _fields_kept(control)):
            return None
        return told.verdict

    def keep(self, seq: int, control: Control, verdict: ControlOutcome) -> None:
        fields = _fields_kept(control)
        self._put(KeptOutcome(seq, control.kind, verdict.refusal, verdict.rows, fields))

    def _put(self, told: KeptOutcome) -> None:
        self._by_seq[told.seq] = told
        while len(self._by_seq) > self._kept:
            del self._by_seq[next(iter(self._by_seq))]

    def state(self) -> dict[str, np.ndarray]:
        """As arrays; none where nothing is kept."""
        if not self._by_seq:
            return {}
        told = msgspec.json.encode(list(self._by_seq.values()), order="sorted")
        return {"told": np.frombuffer(told, np.uint8).copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Hold these; none where there are none. Raises CorruptState."""
        self._by_seq.clear()
        if "told" not in arrays:
            return
        try:
            found = msgspec.json.decode(arrays["told"].tobytes(), type=list[KeptOutcome])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptState(f"the kept verdicts are damaged: {error}") from error
        for told in found:
            self._put(told)


def _fields_kept(control: Control) -> dict[str, Any]:
    return dict(control.fields) if control.kind in _WITH_FIELDS else {}
