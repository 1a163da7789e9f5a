"""Rows with inputs for the stage of a history."""

import math

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.history.spec import STATS
from dualstream.solvers.rows.columns.inputs import Inputs
from dualstream.solvers.rows.text.tokens import ZERO

ALL = list(STATS)
NAN = math.nan
CELLS = Inputs(0, ("card", "shop", "city"), ("at", "sent"), ("x", "z"))
NAMES = (*CELLS.keys, *CELLS.times, *CELLS.values)


def group(by="", stats=ALL, half_life=("1h",), **fields):
    base = {"by": by.split(), "time": "at", "of": "x", "labels": 0, "keys": 4000}
    return base | {"stats": list(stats), "half_life": list(half_life)} | fields


def inputs_of_width(bits):
    return Inputs(1 << bits, CELLS.keys, CELLS.times, CELLS.values)


def key_number(key):
    return float((key + 1) * 0x9E3779B97F4A7 % 2**53 or 1)


def batch_of(rows, labels, weights, served, bits, classes=()):
    width = 1 << bits
    pointers, indices, values = [0], [], []
    for entries, cells in rows:
        whole = entries | {
            width + NAMES.index(name): x if abs(x) > ZERO else ZERO for name, x in cells.items()
        }
        indices += sorted(whole)
        values += [whole[j] for j in sorted(whole)]
        pointers.append(len(indices))
    return Batch(
        np.array(pointers), np.array(indices, np.int32), np.array(values), np.array(labels),
        np.array(weights), width + len(NAMES), classes, np.array(served),
    )  # fmt: skip


def rows_of(batch):
    pairs = [
        (batch.indices[a:b].tolist(), batch.values[a:b].tolist())
        for a, b in zip(batch.indptr[:-1], batch.indptr[1:], strict=True)
    ]
    assert all(indices == sorted(set(indices)) for indices, _ in pairs)
    return [dict(zip(*pair, strict=True)) for pair in pairs]


def learn_in(stage, batch, sizes):
    parts, at = [], 0
    for turn in range(len(batch)):
        if at >= len(batch):
            break
        size = sizes[turn % len(sizes)]
        parts.append(stage.learn(batch[at : at + size]))
        at += size
    return Batch.concat(parts)


def same_batches(a, b):
    names = ("indptr", "indices", "values", "labels", "weights")
    return a.dim == b.dim and all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in names
    )
