"""One row as the dense columns of dense_columns.py have it, for explanations."""

import numpy as np

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear.dense_columns import COLUMNS, LARGEST_VALUE, DenseColumns
from dualstream.solvers.rows.batch import Batch


def dense_values(table: DenseColumns, k: Ints, row: Batch) -> tuple[Ints, Floats]:
    """The feature of each column in use, and its value in one row: see dense_columns.dense_row."""
    features = table.features(int(k[COLUMNS]))
    x = np.zeros(len(features))
    at = np.searchsorted(row.indices, features)
    has = at < len(row.indices)
    has[has] = row.indices[at[has]] == features[has]
    values = np.clip(row.values[at[has]], -LARGEST_VALUE, LARGEST_VALUE)
    x[has] = values.astype(np.float32)
    return features, x
