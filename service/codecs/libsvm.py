"""text/x-libsvm: one row a line, `LABEL INDEX:VALUE ...`, indices from 1."""

import numpy as np

from service.codecs.door import BadRow, Door, Label
from service.codecs.intake import Intake
from service.errors import RowError
from solvers import Batch


def parse_libsvm(door: Door, body: bytes, labelled: bool) -> Intake:
    """Rows of LIBSVM text. A line that does not parse is a bad row; blank lines are none."""
    found = Batch.from_libsvm(body, door.dim, labelled=labelled)
    errors = [RowError(bad.row, "", bad.reason, bad.line) for bad in found.bad]
    if not labelled:
        return Intake(found.batch, found.rows.tolist(), errors)
    labels, wrong = _labels(door, body, found.batch.labels, found.label_spans)
    if not wrong:
        return Intake(_with_labels(found.batch, labels), found.rows.tolist(), errors)
    lines = _line_numbers(body, found.label_spans[list(wrong), 0])
    for (row, reason), line in zip(wrong.items(), lines, strict=True):
        errors.append(RowError(int(found.rows[row]), "/y", reason, line))
    errors.sort(key=lambda error: error.index)
    good = np.array([row for row in range(len(labels)) if row not in wrong], np.int64)
    batch = _with_labels(found.batch, labels).take(good)
    return Intake(batch, found.rows[good].tolist(), errors)


def _labels(
    door: Door, body: bytes, numbers: np.ndarray, spans: np.ndarray
) -> tuple[np.ndarray, dict[int, str]]:
    """The learner's numbers for the labels as written, and the reasons of those that are none.

    Labels come in few kinds for a classifier, so each kind is looked up once.
    """
    if door.task == "regression" and not np.isnan(numbers).any():
        return numbers, {}
    labels = np.ones(len(numbers))
    wrong: dict[int, str] = {}
    if door.class_names is None and not np.isnan(numbers).any():
        kinds, places = np.unique(numbers, return_inverse=True)
        read = [_read(door, float(kind)) for kind in kinds]
        for kind, (number, reason) in enumerate(read):
            mine = places == kind
            labels[mine] = number
            if reason:
                wrong |= dict.fromkeys(np.flatnonzero(mine).tolist(), reason)
        return labels, dict(sorted(wrong.items()))
    for row, (start, end) in enumerate(spans.tolist()):
        is_text = door.class_names is not None or np.isnan(numbers[row])
        label: Label = body[start:end].decode("utf-8", "replace") if is_text else numbers[row]
        labels[row], reason = _read(door, label)
        if reason:
            wrong[row] = reason
    return labels, wrong


def _read(door: Door, label: Label) -> tuple[float, str]:
    try:
        return door.label(label), ""
    except BadRow as bad:
        return 1.0, bad.reason


def _with_labels(batch: Batch, labels: np.ndarray) -> Batch:
    return Batch(batch.indptr, batch.indices, batch.values, labels, batch.weights, batch.dim)


def _line_numbers(body: bytes, offsets: np.ndarray) -> list[int]:
    """The line, from 1, of each byte offset."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    lines: list[int] = (np.searchsorted(ends, offsets) + 1).tolist()
    return lines
