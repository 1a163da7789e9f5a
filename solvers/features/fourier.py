"""Random Fourier features of the kernel exp(-gamma |x - z|^2).

phi(x) = sqrt(2 / D) cos(nu'x + beta), with the columns of nu drawn from N(0, 2 gamma I) and beta
from U[0, 2 pi): Rahimi and Recht, "Random features for large-scale kernel machines" (2007), and
section 3.2.3.2 of the thesis with the corrections of docs/internals/misprints.md. Then
E[phi(x)'phi(z)] is the kernel. The draws come from the raw bits of PCG64 (O'Neill 2014) and an own
Box-Muller transform, so they do not depend on library versions. They are part of the state
nevertheless.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import FourierForm
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch, drop_zeros


class Fourier:
    """The stage `map: fourier`. Memory: 8 bytes for each of dim x components; O(components) per
    entry."""

    def __init__(self, dim: int, components: int, gamma: float, seed: int) -> None:
        self.dim = dim
        self.components = components
        self._nu, self._beta = draw_frequencies(dim, components, gamma, seed)

    def learn(self, batch: Batch) -> Batch:
        """See Stage."""
        return self.peek(batch)

    def peek(self, batch: Batch) -> Batch:
        """See Stage."""
        out = np.empty((len(batch), self.components))
        fourier_rows(batch.indptr, batch.indices, batch.values, self._nu, self._beta, out)
        return with_dense_rows(batch, out)

    def undo(self) -> None:
        """See Stage: rows change nothing."""

    def form(self) -> FourierForm:
        """See Stage."""
        return FourierForm(self._nu.copy(), self._beta.copy())

    def state(self) -> State:
        """See Stage."""
        return {"nu": self._nu.copy(), "beta": self._beta.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Stage."""
        check_arrays(state, {"nu": self._nu.shape, "beta": self._beta.shape})
        self._nu = np.array(state["nu"], np.float64, order="C")
        self._beta = np.array(state["beta"], np.float64)


def draw_frequencies(dim: int, components: int, gamma: float, seed: int) -> tuple[Floats, Floats]:
    """nu (dim, components) and beta (components,)."""
    pairs = (dim * components + 1) // 2
    bits = np.random.PCG64(seed).random_raw(2 * pairs + components)
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    normal = np.empty(2 * pairs)
    box_muller(uniform[: 2 * pairs], normal)
    nu = math.sqrt(2.0 * gamma) * normal[: dim * components].reshape(dim, components)
    return np.ascontiguousarray(nu), 2.0 * math.pi * uniform[2 * pairs :]


def with_dense_rows(batch: Batch, matrix: Floats) -> Batch:
    """The labels and weights of a batch with the rows of a matrix, whose zeros are dropped."""
    n, dim = matrix.shape
    indptr = np.zeros(n + 1, np.int64)
    indices, values = np.empty(matrix.size, np.int32), np.empty(matrix.size)
    nnz = drop_zeros(matrix, indptr, indices, values)
    return batch.with_rows(indptr, indices[:nnz], values[:nnz], dim)


@kernel
def box_muller(uniform: RO_F8, normal: F8) -> None:
    """Pairs of independent normal numbers from pairs of uniform ones in [0, 1)."""
    for i in range(0, uniform.shape[0], 2):
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform[i]))
        angle = 2.0 * math.pi * uniform[i + 1]
        normal[i] = radius * math.cos(angle)
        normal[i + 1] = radius * math.sin(angle)


@kernel
def fourier_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, nu: RO_F8_2D, beta: RO_F8, out: F8_2D
) -> None:
    """out (n, D) = sqrt(2 / D) cos(nu'x + beta) for each row x.

    nu (dim, D), beta (D,). Cost O(D) per entry, and D cosines per row.
    """
    d = beta.shape[0]
    scale = math.sqrt(2.0 / d)
    for i in range(out.shape[0]):
        for k in range(d):
            out[i, k] = beta[k]
        for p in range(indptr[i], indptr[i + 1]):
            x, j = values[p], indices[p]
            for k in range(d):
                out[i, k] += x * nu[j, k]
        for k in range(d):
            out[i, k] = scale * math.cos(out[i, k])
