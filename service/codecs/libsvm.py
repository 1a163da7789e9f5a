"""LIBSVM codec (text/x-libsvm): one row per line, `LABEL INDEX:VALUE ...`, indices from 1."""

from collections.abc import Sequence

import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows, labels_and_classes
from dualstream.service.codecs.row_schema import BadRow, Label, RowSchema
from dualstream.service.codecs.text_fields import label_of
from dualstream.solvers import Batch
from dualstream.wire.problem_json import Problem, RowError


def parse_libsvm(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Parse LIBSVM text. A line that is not valid is a row error; blank lines are skipped."""
    if schema.is_hashed:
        reason = (
            "text/x-libsvm has feature indices, but this model has named features; send text/x-vw"
        )
        raise Problem(415, "unsupported-media-type", reason)
    parsed = Batch.from_libsvm(body, schema.dim, labelled=labelled)
    errors = [RowError(bad.row, "", bad.reason, bad.line) for bad in parsed.bad]
    row_indices = _row_indices(parsed.rows, bool(errors))
    if not labelled:
        return ParsedRows(parsed.batch, row_indices, errors)
    labels, wrong = _labels(schema, body, parsed.batch.labels, parsed.label_spans)
    if not wrong:
        batch = parsed.batch.with_labels(*labels_and_classes(labels))
        return ParsedRows(batch, row_indices, errors)
    lines = _line_numbers(body, parsed.label_spans[list(wrong), 0])
    for (row, reason), line in zip(wrong.items(), lines, strict=True):
        errors.append(RowError(int(parsed.rows[row]), "/y", reason, line))
    errors.sort(key=lambda error: error.index)
    rows = np.array([row for row in range(len(labels)) if row not in wrong], np.int64)
    good = labels_and_classes([labels[row] for row in rows.tolist()])
    return ParsedRows(
        parsed.batch.take(rows).with_labels(*good), parsed.rows[rows].tolist(), errors
    )


def _row_indices(rows: np.ndarray, has_errors: bool) -> Sequence[int]:
    """Indices of the valid rows; a range if all rows are valid."""
    listed: list[int] = rows.tolist() if has_errors else []
    return listed if has_errors else range(len(rows))


def _labels(
    schema: RowSchema, body: bytes, numbers: np.ndarray, spans: np.ndarray
) -> tuple[np.ndarray | list[float | str], dict[int, str]]:
    """Labels for the learner, and row -> reason of the invalid ones.

    A classifier has few distinct labels, so each is looked up once.
    """
    are_numbers = not np.isnan(numbers).any()
    if schema.task == "regression" and are_numbers:
        return numbers, {}
    if schema.class_names is None and are_numbers:
        if schema.task == "binary" and bool((np.abs(numbers) == 1.0).all()):
            return numbers, {}
        kinds, codes = np.unique(numbers, return_inverse=True)
        read = [_read(schema, float(kind)) for kind in kinds]
        labels = [read[code][0] for code in codes.tolist()]
        bad = [kind for kind, (_, reason) in enumerate(read) if reason]
        wrong = np.flatnonzero(np.isin(codes, bad)).tolist()
        return labels, {row: read[codes[row]][1] for row in wrong}
    labels, reasons = [], {}
    for row, (start, end) in enumerate(spans.tolist()):
        label, reason = _read(schema, body[start:end])
        labels.append(label)
        if reason:
            reasons[row] = reason
    return labels, reasons


def _read(schema: RowSchema, raw: float | bytes) -> tuple[float | str, str]:
    try:
        label: Label = raw if isinstance(raw, float) else _label_of(schema, raw)
        return schema.label(label), ""
    except BadRow as bad:
        return 1.0, bad.reason


def _label_of(schema: RowSchema, written: bytes) -> Label:
    try:
        return label_of(written.decode(), schema.class_names is not None)
    except UnicodeDecodeError:
        raise BadRow("/y", "the label is not UTF-8") from None


def _line_numbers(body: bytes, offsets: np.ndarray) -> list[int]:
    """Line number, from 1, of each byte offset."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    lines: list[int] = (np.searchsorted(ends, offsets) + 1).tolist()
    return lines
