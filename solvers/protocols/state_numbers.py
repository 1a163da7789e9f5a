"""What a state may hold: the one predicate that learning, saving and restoring share.

Every float of a state is finite. There is no smaller limit: a feature stage multiplies a value of a
row, at most 1e100, by a power of the number of rows, and old states hold such values.

- Learning: a kernel computes the new numbers of a row and writes them only if all are finite
  (`abs(x) < inf`). Otherwise the row is rejected and counted, and the state is as if it had not
  come. A member of a portfolio is reset instead.
- Restoring: `check_arrays` for numbers, `rows_of_state` for rows. A state that learning reaches is
  one that they accept; tests/solvers/test_reachable_states.py searches for others.
- Saving: the service restores what it is about to save before it trims the journal.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, SolverError
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.text.tokens import LARGEST

Array = npt.NDArray[Any]


def is_storable(numbers: npt.ArrayLike) -> bool:
    """Whether a state may hold these numbers."""
    array = np.asarray(numbers)
    return math.isfinite(array) if array.shape == () else bool(np.isfinite(array).all())


def check_arrays(state: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CorruptState unless these arrays exist, have these shapes, and are storable."""
    for name, shape in shapes.items():
        if name not in state:
            raise CorruptState(f"the state has no {name}")
        array = np.asarray(state[name])
        if array.shape != shape:
            raise CorruptState(f"{name} has shape {array.shape}, expected {shape}")
        if not is_storable(array):
            raise CorruptState(f"{name} is not finite")


def rows_of_state(
    what: str, columns: Sequence[Array], dim: int, classes: tuple[str, ...] = ()
) -> Batch:
    """Rows that a learner stored, as a Batch: its rules, but any finite value is allowed.

    columns  indptr, indices, values, labels and weights
    Raises CorruptState, which names the rows by `what`. Arrays are not copied.
    """
    indptr, indices, values, labels, weights = columns
    try:
        if not is_storable(values):
            raise CorruptState("a value is not finite")
        small = np.clip(values, -LARGEST, LARGEST)
        # Kernels follow the indices of these rows, so they are checked like any others.
        rows = Batch(indptr, indices.astype(np.int32), small, labels, weights, dim, classes)
    except SolverError as error:
        raise CorruptState(f"the {what} are damaged: {error}") from error
    whole = np.ascontiguousarray(values, np.float64)
    arrays = (rows.indptr, rows.indices, whole, rows.labels, rows.weights)
    return Batch.of_checked(*arrays, dim, classes)
