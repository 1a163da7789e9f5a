"""Many small parts at once: what makes a journal of single samples quick to read."""

from typing import Any

import numpy as np
import numpy.typing as npt

from service.journal import _format as f


def one_row_parts(
    body: bytes,
    columns: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> f.Rows:
    """Decode parts of one row each, all with the same columns and without text.

    starts, ends   where the content of each part begins and ends in `body`

    Raises UnknownRecord, CorruptRecord.
    """
    gather = _Gather(np.frombuffer(body, np.uint8), starts.copy(), ends)
    count = len(starts)
    length_kind = columns >> f.LENGTHS_SHIFT & 3
    lengths = gather.column(f.UNSIGNED[min(length_kind, 2)]).astype(np.int64)
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    value_kind = columns >> f.VALUES_SHIFT & 3
    index_kind = columns >> f.INDICES_SHIFT & 3
    if index_kind == f.INDICES_RUN:
        if not value_kind or int(indptr[-1]) > len(body):
            raise f.CorruptRecord("indices without values")
        within = np.arange(int(indptr[-1]), dtype=np.int64) - np.repeat(indptr[:-1], lengths)
        indices = within.astype(np.int32)
    else:
        indices = checked_indices(gather.column(f.UNSIGNED[index_kind], lengths))
    values = _floats(gather, value_kind, lengths)
    rows = f.Rows(
        indptr,
        indices,
        np.ones(int(indptr[-1])) if values is None else values,
        _labels(gather, columns >> f.LABELS_SHIFT & 7),
        _floats(gather, columns >> f.WEIGHTS_SHIFT & 3),
        None,
        gather.column(f.FLOAT64).astype(np.float64) if columns & f.SERVED_SCORE else None,
        gather.column(f.INT64).astype(np.int64) if columns & f.SERVED_SEQ else None,
    )
    if bool((gather.at != ends).any()):
        raise f.CorruptRecord("bytes too many in a part")
    return rows


class _Gather:
    """Takes the same column out of every part; `at` is where each part's next column begins."""

    __slots__ = ("at", "bytes", "ends")

    def __init__(
        self, all_bytes: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], ends: Any
    ) -> None:
        self.bytes, self.at, self.ends = all_bytes, at, ends

    def column(
        self, dtype: np.dtype[Any], lengths: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[Any]:
        """`lengths` items of each part, or one item of each, one part's after the other's."""
        width = dtype.itemsize
        sizes = np.full(len(self.at), width) if lengths is None else lengths * width
        if bool((sizes > self.ends - self.at).any()):
            raise f.CorruptRecord("a column beyond its part")
        total = np.cumsum(sizes)
        places = np.arange(int(total[-1])) + np.repeat(self.at - total + sizes, sizes)
        self.at += sizes
        return self.bytes[places].view(dtype)


def checked_indices(indices: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Indices as rows hold them.

    Raises CorruptRecord.
    """
    if indices.dtype.itemsize == 4 and len(indices) and indices.max() > f.MAX_INDEX:
        raise f.CorruptRecord(f"an index over {f.MAX_INDEX}")
    return indices.astype(np.int32)


def _floats(
    gather: _Gather, kind: int, lengths: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float64] | None:
    if kind == 0:
        return None
    if kind == 3:
        raise f.UnknownRecord("column of floats of kind 3")
    return gather.column(f.FLOAT32 if kind == 1 else f.FLOAT64, lengths).astype(np.float64)


def _labels(gather: _Gather, kind: int) -> npt.NDArray[np.float64] | None:
    if kind == 0:
        return None
    if kind == f.LABELS_BITS:
        return (gather.column(f.UNSIGNED[0]) & 1).astype(np.float64) * 2.0 - 1.0
    return _floats(gather, kind - 1)


def merged_rows(runs: list[f.Rows]) -> f.Rows:
    """Join rows that have the same kind of label; where a column is missing its default stands.

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
