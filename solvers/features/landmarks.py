"""Learner behind a Nystroem map whose landmarks come from the stream.

Rows are buffered, with score 0, until there are `components` different rows, or 10 times as many
rows in all. Then the map is made from the different rows, and all buffered rows are learned in
order together with the row that completes them: that row costs O(components^3). A buffered row that
the learner then rejects is not learned, although it counts as such.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, NotExpressible, RefitError
from dualstream.solvers.features.nystroem import Nystroem
from dualstream.solvers.features.wrapper import ClassLearner, Wrapped, WrappedClasses
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner, Outcome, State, under
from dualstream.solvers.protocols.served_form import Form, served_form
from dualstream.solvers.protocols.state_numbers import check_arrays, rows_of_state
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import class_indices, names_of, names_state

KEPT_PER_LANDMARK = 10
_ROWS = ("indptr", "indices", "values", "labels", "weights")


class Landmarks(Wrapped):
    """`make_mapped` returns a learner behind the map; `blank` scores rows before the map exists.

    `blank` takes rows of the map's features, and learns nothing.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        mapping: Nystroem,
        make_mapped: Callable[[], Wrapped],
        blank: Learner,
    ) -> None:
        self.spec = spec
        self._map = mapping
        self._make_mapped = make_mapped
        self._blank = blank
        self._mapped = make_mapped()
        self._scored = 0
        self._nothing = Batch.from_csr([0], [], [], [], dim=mapping.dim)
        self._kept: list[Batch] = []
        self._places: dict[bytes, int] = {}
        self._rows = 0
        self._learner = blank

    @property
    def samples(self) -> int:
        """See Learner: buffered rows count as learned."""
        return self._scored + (self._mapped.samples if self._map.rank else 0)

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py: the row that completes the landmarks."""
        if self._map.rank:
            return super().has_long_row(rows)
        return self._rows + rows >= self._map.components

    def learn_prefix(self, batch: Batch) -> Outcome:
        """See Wrapped."""
        if self._map.rank:
            return self._mapped.learn_prefix(batch)
        outcome = self._blank.learn(self._empty(batch))
        taken = self._keep(batch)
        self._scored += taken
        if self._is_complete():
            self._make_map()
        return outcome[:taken]

    def _empty(self, batch: Batch) -> Batch:
        """As many rows of zeros, of weight 0, with the same labels."""
        n, none = len(batch), np.empty(0, np.int32)
        columns = (np.zeros(n + 1, np.int64), none, np.empty(0), batch.labels, np.zeros(n))
        return Batch(*columns, self._map.components, batch.classes)

    def _keep(self, batch: Batch) -> int:
        """Buffer rows until they are complete; return how many were processed."""
        taken = 0
        while taken < len(batch) and not self._is_complete():
            if batch.weights[taken] > 0.0:
                begin, end = batch.indptr[taken : taken + 2]
                key = batch.indices[begin:end].tobytes() + batch.values[begin:end].tobytes()
                self._places.setdefault(key, self._rows)
                self._rows += 1
            taken += 1
        rows = batch[:taken]
        self._kept.append(rows.take(rows.weights > 0.0))
        return taken

    def _is_complete(self) -> bool:
        most = self._map.components
        return len(self._places) >= most or self._rows >= KEPT_PER_LANDMARK * most

    def _make_map(self) -> None:
        rows = self._kept_rows()
        self._map.set_landmarks(rows.take(np.array(list(self._places.values()), np.int64)))
        self._mapped.learn(rows)
        self._scored -= self._mapped.samples
        self._learner = self._mapped
        self._kept, self._places, self._rows = [], {}, 0

    def _kept_rows(self) -> Batch:
        pieces = [rows for rows in self._kept if len(rows)]
        self._kept = [Batch.concat(pieces)] if pieces else []
        return self._kept[0] if pieces else self._nothing

    def _behind(self, batch: Batch) -> Batch:
        return batch if self._map.rank else self._empty(batch)

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights."""
        self._check_map()
        return super().window(batch)

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """See TakesWeights."""
        self._check_map()
        super().take_weights(weights, reach, rows)

    def _check_map(self) -> None:
        if not self._map.rank:
            raise RefitError("it has no landmarks yet")

    def form(self) -> Form:
        """See served_form."""
        if not self._map.rank:
            raise NotExpressible("it has no landmarks yet")
        return served_form(self._mapped)

    def forget(self) -> None:
        """See Rewind."""
        self._mapped.forget()

    def state(self) -> State:
        """See Learner: the buffered rows before the map exists, the mapped learner afterwards."""
        arrays: State = {"samples": np.array(self.samples)}
        if self._map.rank:
            return arrays | {f"mapped.{k}": array for k, array in self._mapped.state().items()}
        rows = self._kept_rows()
        labels, classes = rows.labels, rows.classes
        if classes:
            # Numbered by the rows, not by the batches in which they arrived.
            labels, classes = class_indices([classes[int(label)] for label in labels])
        kept = {
            "indptr": rows.indptr.copy(),
            "indices": rows.indices.astype(np.int64),
            "values": rows.values.copy(),
            "labels": labels.copy(),
            "weights": rows.weights.copy(),
        } | names_state(classes)
        return arrays | {f"kept.{name}": array for name, array in kept.items()}

    def _take(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        check_arrays(state, {"samples": ()})
        self._map.set_landmarks(self._nothing)
        self._mapped = self._make_mapped()
        self._kept, self._places, self._rows = [], {}, 0
        mapped = under("mapped.", state)
        if mapped:
            self._mapped.restore(mapped)
            if not self._map.rank:
                raise CorruptState("there is a mapped learner but no map")
            self._learner = self._mapped
        else:
            self._keep(self._batch_of(under("kept.", state)))
            self._learner = self._blank
        self._scored = int(state["samples"]) - (self._mapped.samples if mapped else 0)

    def _batch_of(self, state: State) -> Batch:
        try:
            columns = tuple(state[name].copy() for name in _ROWS)
        except KeyError as error:
            raise CorruptState(f"the kept rows are damaged: {error!r}") from error
        rows = rows_of_state("kept rows", columns, self._map.dim, names_of(state))
        if len(rows) >= KEPT_PER_LANDMARK * self._map.components:
            raise CorruptState(
                f"{len(rows)} rows are buffered, enough for a map, but there is no map"
            )
        return rows


class LandmarksMulticlass(Landmarks, WrappedClasses):
    """The same for a multiclass learner."""

    _learner: ClassLearner
