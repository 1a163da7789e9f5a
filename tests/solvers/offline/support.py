"""Rows of the proximal Newton method."""

import numpy as np

from dualstream.solvers.offline.proximal_newton import Rows


def rows_of(batch, bias=1.0):
    columns = (batch.indptr, batch.indices, batch.values, batch.labels, batch.weights)
    return Rows(*columns, batch.dim, bias)


def everything(rows):
    return np.zeros(rows.width + 1), np.ones(rows.width, bool)
