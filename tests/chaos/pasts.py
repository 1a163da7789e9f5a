"""A model with a history, and its columns by another computation from the journal."""

import math

import numpy as np

from dualstream.service.journal import open_journal
from dualstream.service.journal.record import Rows, decode_merged
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.rows.text.tokens import ZERO
from tests.solvers.history.reference import Reference, merged

SPEC = {
    "algorithm": "sgd",
    "columns": {
        "id": "tx",
        "types": {"at": "time", "card": "ignore", "amount": "number", "site": "category"},
    },
    "history": [
        {
            "by": "card",
            "time": "at",
            "of": "amount",
            "stats": ["count", "mean", "since", "last"],
            "half_life": ["1h", "1d"],
        },
        {"by": "site", "time": "at", "stats": ["label_mean"], "half_life": "1d", "labels": 2},
    ],
}


async def records_of(store: str) -> list[Rows]:
    """The rows of the whole journal, in order."""
    journal = await open_journal(store)
    try:
        record, rows, after = await journal.get("m"), [], 0
        while entries := await journal.read(record.id, record.incarnation, after):
            rows += decode_merged(b"".join(entry.body for entry in entries))[1]
            after = entries[-1].seq
        return rows
    finally:
        await journal.close()


def assert_columns_follow_from_the_journal(replica: Replica, blocks: list[Rows]) -> int:
    """A computation in plain Python gives the same columns, to the bit: for each card and site now,
    and for each row with a late label when it was served. Returns the number of these rows."""
    inputs, groups = inputs_of(replica.spec), replica.spec["history"]
    reference, carried = Reference(groups, unit=True), (*inputs.keys, *inputs.times, *inputs.values)
    rows: list[tuple[dict[str, float], float, bool, float]] = []
    served_at: dict[int, list[tuple[dict[str, float], dict[int, float]]]] = {}
    for block in blocks:
        for n in range(len(block)):
            entries = slice(int(block.indptr[n]), int(block.indptr[n + 1]))
            row = dict(
                zip(block.indices[entries].tolist(), block.values[entries].tolist(), strict=True)
            )
            cells = {
                carried[j - inputs.width]: x if abs(x) > ZERO else 0.0
                for j, x in row.items()
                if j >= inputs.width
            }
            label = math.nan if block.labels is None else float(block.labels[n] > 0)
            served = block.served_scores
            earlier = block.earlier[n] if block.earlier else ()
            before = float(earlier[0][1] > 0) if earlier else math.nan  # newest first
            is_late = served is not None and served[n] == served[n]
            rows.append((cells, label, is_late, before))
            if is_late:
                assert block.served_seqs is not None
                served_at.setdefault(int(block.served_seqs[n]), []).append((cells, row))
    assert len(rows) == replica.seq
    names = replica.learner.history.names
    features = hash_names(names, replica.spec["features"]["bits"]).tolist()

    def columns_of(cells: dict[str, float]) -> dict[int, float]:
        return merged({}, features, reference.row(cells, math.nan, True, False, False))

    for seq, (cells, label, is_late, before) in enumerate(rows):
        for served_cells, row in served_at.get(seq, ()):
            columns = {j: x for j, x in row.items() if j in features}
            assert columns == columns_of(served_cells)
        reference.row(cells, label, False, not is_late, is_late, before)
    probes = [cells | {"at": 1.75e9 + 1e5} for cells, *_ in rows[-60:]]
    for cells in probes:
        pairs = sorted((carried.index(name) + inputs.width, x or ZERO) for name, x in cells.items())
        indices, values = map(np.array, zip(*pairs, strict=True))
        batch = Batch.from_csr([0, len(pairs)], indices, values, dim=inputs.row_width)
        seen = replica.learner.as_served(batch)
        columns = dict(zip(seen.indices.tolist(), seen.values.tolist(), strict=True))
        assert columns == columns_of(cells)
    return sum(map(len, served_at.values()))
