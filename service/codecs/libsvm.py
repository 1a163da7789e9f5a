"""text/x-libsvm: one row a line, `LABEL INDEX:VALUE ...`, indices from 1."""

from collections.abc import Sequence

import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows, labels_and_classes
from dualstream.service.codecs.row_schema import BadRow, Label, RowSchema
from dualstream.solvers import Batch
from dualstream.wire.problems import Problem, RowError


def parse_libsvm(door: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Rows of LIBSVM text. A line that does not parse is a bad row; blank lines are none."""
    if door.is_hashed:
        reason = "text/x-libsvm names features by index, and this model takes them by name"
        raise Problem(415, "unsupported-media-type", reason)
    found = Batch.from_libsvm(body, door.dim, labelled=labelled)
    errors = [RowError(bad.row, "", bad.reason, bad.line) for bad in found.bad]
    places = _listed(found.rows, bool(errors))
    if not labelled:
        return ParsedRows(found.batch, places, errors)
    labels, wrong = _labels(door, body, found.batch.labels, found.label_spans)
    if not wrong:
        return ParsedRows(found.batch.with_labels(*labels_and_classes(labels)), places, errors)
    lines = _line_numbers(body, found.label_spans[list(wrong), 0])
    for (row, reason), line in zip(wrong.items(), lines, strict=True):
        errors.append(RowError(int(found.rows[row]), "/y", reason, line))
    errors.sort(key=lambda error: error.index)
    rows = np.array([row for row in range(len(labels)) if row not in wrong], np.int64)
    good = labels_and_classes([labels[row] for row in rows.tolist()])
    return ParsedRows(found.batch.take(rows).with_labels(*good), found.rows[rows].tolist(), errors)


def _listed(rows: np.ndarray, are_some: bool) -> Sequence[int]:
    """The places of the good rows: those of all rows unless some are bad."""
    listed: list[int] = rows.tolist() if are_some else []
    return listed if are_some else range(len(rows))


def _labels(
    door: RowSchema, body: bytes, numbers: np.ndarray, spans: np.ndarray
) -> tuple[np.ndarray | list[float | str], dict[int, str]]:
    """What the learner sees for the labels as written, and the reasons of those that are none.

    Labels come in few kinds for a classifier, so each kind is looked up once.
    """
    are_numbers = not np.isnan(numbers).any()
    if door.task == "regression" and are_numbers:
        return numbers, {}
    if door.class_names is None and are_numbers:
        if door.task == "binary" and bool((np.abs(numbers) == 1.0).all()):
            return numbers, {}
        kinds, places = np.unique(numbers, return_inverse=True)
        read = [_read(door, float(kind)) for kind in kinds]
        labels = [read[place][0] for place in places.tolist()]
        bad = [kind for kind, (_, reason) in enumerate(read) if reason]
        wrong = np.flatnonzero(np.isin(places, bad)).tolist()
        return labels, {row: read[places[row]][1] for row in wrong}
    labels, reasons = [], {}
    for row, (start, end) in enumerate(spans.tolist()):
        is_text = door.class_names is not None or np.isnan(numbers[row])
        text = body[start:end].decode("utf-8", "replace")
        label, reason = _read(door, text if is_text else float(numbers[row]))
        labels.append(label)
        if reason:
            reasons[row] = reason
    return labels, reasons


def _read(door: RowSchema, label: Label) -> tuple[float | str, str]:
    try:
        return door.label(label), ""
    except BadRow as bad:
        return 1.0, bad.reason


def _line_numbers(body: bytes, offsets: np.ndarray) -> list[int]:
    """The line, from 1, of each byte offset."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    lines: list[int] = (np.searchsorted(ends, offsets) + 1).tolist()
    return lines
