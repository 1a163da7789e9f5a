"""Merge the decoded rows of several parts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.service.journal.record import format as f


def checked_indices(indices: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Indices as int32.

    Raises CorruptRecord.
    """
    if indices.dtype.itemsize == 4 and len(indices) and indices.max() > f.MAX_INDEX:
        raise f.CorruptRecord(f"an index above {f.MAX_INDEX}")
    return indices.astype(np.int32)


def merged_rows(runs: list[f.Rows]) -> f.Rows:
    """Concatenate rows with the same kind of label; missing columns get their default.

    Defaults: weight 1, id empty, served score NaN, served seq -1.
    """
    if len(runs) == 1:
        return runs[0]
    ends = np.cumsum([len(rows.indices) for rows in runs])
    indptr = [runs[0].indptr] + [
        rows.indptr[1:] + before for rows, before in zip(runs[1:], ends, strict=False)
    ]
    return f.Rows(
        np.concatenate(indptr),
        np.concatenate([rows.indices for rows in runs]),
        np.concatenate([rows.values for rows in runs]),
        _joined_labels(runs),
        _joined([rows.weights for rows in runs], runs, 1.0),
        _joined_ids(runs),
        _joined([rows.served_scores for rows in runs], runs, np.nan),
        _joined([rows.served_seqs for rows in runs], runs, -1),
        tuple(pair for rows in runs for pair in rows.names),
    )


def _joined_labels(runs: list[f.Rows]) -> npt.NDArray[np.float64] | list[str] | None:
    if runs[0].labels is None:
        return None
    if isinstance(runs[0].labels, list):
        return [label for rows in runs for label in rows.labels or ()]
    return np.concatenate([rows.labels for rows in runs])


def _joined_ids(runs: list[f.Rows]) -> list[str] | None:
    if all(rows.ids is None for rows in runs):
        return None
    return [text for rows in runs for text in rows.ids or [""] * len(rows)]


def _joined(columns: list[Any], runs: list[f.Rows], default: float) -> Any:
    if all(column is None for column in columns):
        return None
    dtype = np.int64 if isinstance(default, int) else np.float64
    return np.concatenate(
        [
            np.full(len(rows), default, dtype) if column is None else column
            for column, rows in zip(columns, runs, strict=True)
        ]
    )
