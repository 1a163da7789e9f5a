"""Reference implementation of the feature stages, in plain Python."""

import math

import numpy as np

from dualstream.solvers import Batch


def rows_of(batch):
    """Each row as a dict of index to value."""
    ends = batch.indptr
    return [
        dict(zip(batch.indices[a:b].tolist(), batch.values[a:b].tolist(), strict=True))
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    ]


def batch_of(rows, dim, labels=None, weights=None):
    """A batch of such rows."""
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = [j for row in rows for j in row]
    values = [x for row in rows for x in row.values()]
    return Batch.from_csr(indptr, indices, values, labels, weights, dim=dim)


SETTLED = 1024
"""Rows from which on the limit of values grows with the deviations of a column."""


class BalancedReference:
    """Balanced scaling: moments are recomputed from all values for each column."""

    def __init__(self, power=0.25, moments=True, reach=0.0):
        self.power, self.moments, self.reach = power, moments, reach
        self.t = 0
        self.seen = {}  # column -> count, mean, sum of squared deviations
        self.dense = set()

    def scale(self, row):
        self.t += 1
        t = self.t
        if self.reach:
            row = {j: self.limited(j, x) for j, x in row.items()}
        for j, x in row.items():
            c, mean, m = self.seen.get(j, (0, 0.0, 0.0))
            c += 1
            step = x - mean
            mean += step / c
            self.seen[j] = c, mean, m + step * (x - mean)
        if not self.moments:
            return {j: x * (self.seen[j][0] / t) ** -self.power for j, x in row.items()}
        if t > 20:
            self.dense |= {j for j in row if self.seen[j][0] >= t / 2}
            self.dense = {j for j in self.dense if not self.seen[j][0] < t / 4}
        out = {}
        for j in sorted(self.dense | set(row)):
            c, mean, m = self.seen[j]
            if j in self.dense:
                variance = m / t + (c / t) * (1 - c / t) * mean**2
                if variance > 1e-30 * (m / t + (c / t) * mean**2):
                    out[j] = (row.get(j, 0.0) - mean * c / t) / math.sqrt(variance)
            else:
                rms = math.sqrt(m / c + mean**2)
                out[j] = row[j] / rms * (c / t) ** -self.power
        return {j: h for j, h in out.items() if h != 0.0}

    def limited(self, j, x):
        """The value, clipped to within `reach` deviations of its column's mean so far."""
        c, mean, m = self.seen.get(j, (0, 0.0, 0.0))
        if c == 0:
            return x
        if m <= 1e-30 * (m + c * mean**2):
            far = self.reach * abs(mean)
        else:
            far = self.reach * math.sqrt(m / min(c, SETTLED))
        return min(max(x, mean - far), mean + far) if far > 1e-145 else x


class NormReference:
    """Row norm, or running norm."""

    def __init__(self, kind):
        self.kind, self.t, self.total = kind, 0, 0.0

    def scale(self, row):
        square = sum(h * h for h in row.values())
        self.t += 1
        self.total += square
        size = math.sqrt(square if self.kind == "row" else self.total / self.t)
        return {j: h / size for j, h in row.items()} if size > 0 else row
