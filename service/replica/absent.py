"""AbsentSeqs: records that a state has passed without learning them, by their seqs.

They were rolled back, or set aside during a pause. A revised label takes the place of the newest
label of its row that the state has learned. So the journal has the seqs of a row's earlier labels
with a revision, and the state knows which of these it lacks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

import numpy as np

from dualstream.service.journal.record import EarlierLabels
from dualstream.solvers import CorruptState

MAX_SPANS = 1000
"""Older spans are forgotten: a state learned the records of these, as far as it knows."""


def is_absent(name: str) -> bool:
    """Is this the name of an array of absent records?"""
    return name.startswith("absent.")


class AbsentSeqs:
    """Ascending spans (first, last) of seqs, with a record between any two."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def __contains__(self, seq: int) -> bool:
        at = bisect_left(self._spans, seq, key=lambda span: span[1])
        return at < len(self._spans) and self._spans[at][0] <= seq

    def add(self, first: int, last: int) -> None:
        """The records `first` to `last`, the newest of the state, were not learned."""
        if first > last:
            return
        if self._spans and self._spans[-1][1] >= first - 1:
            first = min(first, self._spans.pop()[0])
        self._spans.append((first, last))
        del self._spans[:-MAX_SPANS]

    def learn_after(self, seq: int) -> None:
        """All rows after `seq` are learned now."""
        self._spans = [(first, min(last, seq)) for first, last in self._spans if first <= seq]

    def replaced(
        self, earlier: Iterable[EarlierLabels], seqs: Iterable[int]
    ) -> list[float] | list[str] | None:
        """The label that each row takes the place of: the newest that the state has learned.

        NaN, or an empty text, for a row of which it has learned none; None if that is so for all.

        seqs  of the rows' own records
        """
        labels = [self._newest(row, seq) for row, seq in zip(earlier, seqs, strict=True)]
        texts = any(isinstance(label, str) for label in labels)
        none = "" if texts else np.nan
        if all(label is None for label in labels):
            return None
        return [none if label is None else label for label in labels]  # type: ignore[return-value]

    def _newest(self, earlier: EarlierLabels, of: int) -> float | str | None:
        for seq, label in earlier:
            if (seq if seq > 0 else of + seq) not in self:
                return label
        return None

    def arrays(self) -> dict[str, np.ndarray]:
        """The spans (n, 2); no array without any."""
        return {"absent.spans": np.array(self._spans, np.int64)} if self._spans else {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore from the arrays without their prefix. Raises CorruptState."""
        spans = np.asarray(state.get("spans", np.empty((0, 2), np.int64)))
        if spans.dtype != np.int64 or spans.shape != (len(spans), 2):
            raise CorruptState(f"absent records of type {spans.dtype}, shape {spans.shape}")
        edges = spans.ravel() + np.tile((0, 1), len(spans))  # a span may be one record
        if len(edges) and (edges[0] < 1 or (np.diff(edges) < 1).any()):
            raise CorruptState("the absent records are not in order")
        self._spans = [(first, last) for first, last in spans.tolist()]
