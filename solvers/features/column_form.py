"""The balanced scaling of a column table (column_table.py) as a form, for exports."""

import numpy as np

from dualstream.solvers.features.column_table import (
    COUNT,
    MEAN,
    N_STATISTICS,
    PLACE,
    M,
    limit_entries,
)
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.protocols.served_form import BalancedForm


def balanced_form(
    columns: Ints, blocks: Floats, rows: float, power: float, reach: float, *, moments: bool
) -> BalancedForm:
    """The scaling of a next row by the blocks (n, width) of these columns (n,), in increasing
    order.

    `reach` limits values, see limit_entries; 0 for none.
    """
    statistics = blocks[:, -N_STATISTICS:]
    return BalancedForm(
        rows=rows,
        power=power,
        moments=moments,
        columns=columns,
        counts=statistics[:, COUNT].copy(),
        means=statistics[:, MEAN].copy(),
        deviations=statistics[:, M].copy(),
        dense=(statistics[:, PLACE] > 0.0) & moments,
        limits=_column_limits(statistics, reach) if reach > 0.0 else None,
    )


def _column_limits(statistics: Floats, reach: float) -> tuple[Floats, Floats]:
    """The least and the largest value of each column that `limit_entries` leaves as it is."""
    count, mean, m = (statistics[:, part].copy() for part in (COUNT, MEAN, M))
    low, high = np.empty(len(count)), np.empty(len(count))
    for value, out in ((-np.inf, low), (np.inf, high)):
        limit_entries(len(count), reach, np.full(len(count), value), count, mean, m, out)
    return np.nan_to_num(low), np.nan_to_num(high)
