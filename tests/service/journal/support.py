"""Comparison of records, and of a journal with its audit log."""

import math

import numpy as np
from hypothesis import strategies as st

from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control, Rows, decode, decode_merged


async def check_audit(journal: Journal, model: str) -> None:
    """Each append is in the audit log exactly once."""
    got: list[int] = []
    after = None
    while page := await journal.audit(model, after, 1000):
        got += [change.seq for change in page]
        after = page[-1].place
    record = await journal.get(model)
    done: list[int] = []
    while entries := await journal.read(model, record.incarnation, done[-1] if done else 0):
        done += [entry.seq for entry in entries]
    assert got == done


COLUMNS = (
    "labels", "weights", "ids", "served_scores", "served_seqs", "served_parts", "earlier",
)  # fmt: skip
singles = st.floats(width=32)


def assert_same(got: Rows, want: Rows) -> None:
    """Equal to the bit."""
    for name in ("indptr", "indices", "values", *COLUMNS):
        left, right = getattr(got, name), getattr(want, name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype, name
            assert left.tobytes() == right.tobytes(), name
        else:
            assert left == right, name
    assert got.names == want.names


def same_bits(left: dict, right: dict) -> bool:
    """Equal, with NaN equal to itself."""
    return {name: repr(value) for name, value in left.items()} == {
        name: repr(value) for name, value in right.items()
    }


def assert_merged(body: bytes) -> None:
    headers, blocks = decode_merged(body)
    parts = decode(body)
    assert list(headers) == [header for header, _ in parts]
    assert sum(header.count for header in headers) == sum(
        len(block) if isinstance(block, Rows) else 1 for block in blocks
    )
    singles = [row for block in blocks for row in each_row(block)]
    assert singles == [row for _, content in parts for row in each_row(content)]


def each_row(content) -> list:
    """What stands for each record, defaults in place of columns that are not there."""
    if content is None:
        return []
    if isinstance(content, Control):
        return [(content.kind, content.fields)]
    results = []
    for row in range(len(content)):
        start, end = content.indptr[row], content.indptr[row + 1]
        results.append(
            (
                content.indices[start:end].tolist(),
                content.values[start:end].tobytes(),
                None if content.labels is None else repr(content.labels[row]),
                "1.0" if content.weights is None else repr(content.weights[row].item()),
                content.ids[row] if content.ids else "",
                "nan" if content.served_scores is None else repr(content.served_scores[row].item()),
                -1 if content.served_seqs is None else content.served_seqs[row].item(),
                repr([math.nan] * 3)
                if content.served_parts is None
                else repr(content.served_parts[row].tolist()),
                list(content.earlier[row]) if content.earlier else [],
            )
        )
    return results
