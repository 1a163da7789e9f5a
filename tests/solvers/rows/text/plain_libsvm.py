"""A plain parser of libsvm, to compare with."""

import math
import re

from dualstream.solvers import Batch

NUMBER = re.compile(rb"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
INTEGER = re.compile(rb"[+-]?\d+")
DIM = 9


def number(token):
    if INTEGER.fullmatch(token) and abs(int(token)) > 2**53:
        return None
    return float(token) if NUMBER.fullmatch(token) else None


def plain_parse(text, dim, labelled=True):
    """(rows, bad): each row is (index, label or None, {index: value}), bad is a list of indices."""
    rows, bad, position = [], [], 0
    for line in text.split(b"\n"):
        tokens = re.split(rb"[ \t\v\f\r]+", line.split(b"#")[0].strip(b" \t\v\f\r"))
        if tokens == [b""]:
            continue
        label, entries, good = None, {}, True
        if b":" not in tokens[0]:
            label, tokens = tokens[0], tokens[1:]
            good = re.fullmatch(rb"[+-]?(nan|inf|infinity)", label.lower()) is None or not labelled
        elif labelled:
            good = False
        for token in tokens:
            index, _, text_value = token.partition(b":")
            x = number(text_value)
            good = good and re.fullmatch(rb"\d+", index) is not None and x is not None
            good = good and 1 <= int(index) <= dim and abs(x) <= 1e100
            good = good and int(index) not in entries
            if not good:
                break
            entries[int(index)] = x
        y = number(label) if label is not None and labelled else None
        good = good and (y is None or abs(y) <= 1e100)
        if good:
            rows.append((position, y, {j: x for j, x in entries.items() if x != 0.0}))
        else:
            bad.append(position)
        position += 1
    return rows, bad


def found_rows(parsed):
    batch = parsed.batch
    for i in range(len(batch)):
        at = slice(batch.indptr[i], batch.indptr[i + 1])
        entries = {int(j) + 1: x for j, x in zip(batch.indices[at], batch.values[at], strict=True)}
        y = float(batch.labels[i])
        yield int(parsed.rows[i]), None if math.isnan(y) else y, entries


def assert_parsed_alike(text, labelled=True):
    parsed = Batch.from_libsvm(text, DIM, labelled=labelled)
    rows, bad = plain_parse(text, DIM, labelled)
    assert [line.row for line in parsed.bad] == bad
    assert list(found_rows(parsed)) == rows
    b = parsed.batch
    Batch(
        b.indptr, b.indices, b.values, b.labels, b.weights, b.dim
    )  # satisfies every rule of Batch
