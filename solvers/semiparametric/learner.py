"""Semiparametric regression: a Gaussian kernel plus named functions, refitted on a window.

    h(x) = sum_i delta_i k(x, s_i) + sum_j beta_j psi_j(x)

Learning a row scores it and appends it to the window, the last `retain` rows of a weight above 0.
The served function changes only when a refit (`refit.py`) brings the solution of a window: its
support rows s_i with their delta, and beta. Before the first refit the mean of all labels is
served.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import (
    CorruptState,
    InvalidRow,
    NotExpressible,
    RefitError,
    SolverError,
)
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.semiparametric.window import expansion
from dualstream.solvers.online.dual_ascent.refit import fingerprints_of, overlap
from dualstream.solvers.online.forgetting_windows import DUAL, Ring
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.served_weights import (
    ServedWeights,
    count_nonzeros,
    weights_listed,
)
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable, rows_of_state
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.scalar import unknown_label
from dualstream.solvers.semiparametric import kernels
from dualstream.solvers.semiparametric.coefficients import Coefficient, Coefficients

_POWERS = {"constant": 0.0, "linear": 1.0, "quadratic": 2.0, "sinc": kernels.SINC}
_SHIFTS = {"sine": 0.0, "cosine": 0.25}
_OTHERS = "the retained rows are others than those that it was computed of"


class Semiparametric:
    """The learner of `algorithm: semiparametric`; `spec` is resolved."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        self._epsilon, self._gamma = spec["loss"]["epsilon"], spec["gamma"]
        self._terms = np.array([_numbers_of(term) for term in spec["basis"]], np.float64)
        self._terms = self._terms.reshape(-1, kernels.N_COLUMNS)
        self._ring = Ring(spec["retain"])
        self._first = self._last = 0
        self._samples = 0
        self._mean = np.zeros(2)
        self._is_fitted = False
        self._support = _no_rows(self._dim)
        self._delta = np.empty(0)
        self._beta = np.zeros(len(self._terms))
        self._dropped = np.zeros(len(self._terms), np.int64)
        self._is_unique = True

    # -- learning --------------------------------------------------------------------------------

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. O(support rows x entries) per row."""
        batch.check_width(self._dim)
        row = unknown_label(batch.labels, False)
        if row >= 0:
            label = float(batch.labels[row])
            raise InvalidRow(row, f"the label must be a finite number, got {label!r}")
        n = len(batch)
        scores, losses = np.empty(n), np.empty(n)
        updated, rejected = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        if self._is_fitted:
            self._score(batch, scores)
            kernels.score_losses(batch.labels, self._epsilon, scores, losses, rejected)
        else:
            kernels.learn_mean(
                batch.labels, batch.weights, self._epsilon, scores, losses, updated, self._mean
            )
        self._samples += n - int(np.count_nonzero(rejected))
        stays = np.flatnonzero(~rejected & (batch.weights > 0.0))[-self._ring.retain :]
        if len(stays):
            self._keep(batch if len(stays) == n else batch.take(stays))
        return Outcome(scores, losses, updated, rejected)

    def _keep(self, rows: Batch) -> None:
        """Append these rows to the window."""
        ring, n, nnz = self._ring, len(rows), rows.nnz
        columns = np.stack([rows.labels, rows.weights, np.zeros(n)], axis=1)
        first = max(self._first, self._last + n - ring.retain)
        end = int(ring.starts[self._last])
        if self._last + n > len(ring.rows) or end + nnz > len(ring.values):
            starts, kept_rows, indices, values = ring.rows_between(first, self._last)
            ring.store(
                np.concatenate([starts, starts[-1] + rows.indptr[1:]]),
                np.concatenate([kept_rows, columns]),
                np.concatenate([indices, rows.indices]),
                np.concatenate([values, rows.values]),
            )
            first, self._last = 0, len(kept_rows) + n
        else:
            ring.starts[self._last + 1 : self._last + n + 1] = end + rows.indptr[1:]
            ring.rows[self._last : self._last + n] = columns
            ring.indices[end : end + nnz] = rows.indices
            ring.values[end : end + nnz] = rows.values
            self._last += n
        self._first = first

    # -- serving ---------------------------------------------------------------------------------

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._dim)
        scores = np.full(len(batch), self._mean[kernels.MEAN])
        if self._is_fitted:
            self._score(batch, scores)
        return scores

    def _score(self, batch: Batch, out: Floats) -> None:
        expansion(batch, self._support, self._delta, self._gamma, out)
        kernels.add_basis(batch.indptr, batch.indices, batch.values, self._terms, self._beta, out)

    def probabilities(self, scores: Floats) -> Floats | None:
        """None: this is regression."""
        return None

    @property
    def weights(self) -> Floats:
        """Coefficients of the linear terms, each at the index of its feature: (dim,)."""
        weights = np.zeros(self._dim)
        features, values = self._linear_terms()
        weights[features] = values
        return weights

    def served_weights(self) -> list[ServedWeights]:
        """See Learner and `weights`."""
        return [weights_listed(self._dim, self.intercept, self._linear_terms)]

    def _linear_terms(self) -> tuple[Ints, Floats]:
        """Features with linear terms, and the sums of their coefficients."""
        terms: dict[int, float] = {}
        for term, beta in zip(self.spec["basis"], self._beta.tolist(), strict=True):
            if term["kind"] == "linear":
                feature = term["feature"] - 1
                terms[feature] = terms.get(feature, 0.0) + beta
        return np.array(list(terms), np.int64), np.array(list(terms.values()), np.float64)

    @property
    def intercept(self) -> float:
        """The coefficient of the constant; before the first refit the mean."""
        if not self._is_fitted:
            return float(self._mean[kernels.MEAN])
        terms = zip(self.spec["basis"], self._beta.tolist(), strict=True)
        return float(sum(beta for term, beta in terms if term["kind"] == "constant"))

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return count_nonzeros(self.served_weights())

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._samples

    def certificate(self) -> Certificate | None:
        """None: the refit that brought the solution reported its gap."""
        return None

    def coefficients(self) -> Coefficients | None:
        """beta by name; None before the first refit."""
        if not self._is_fitted:
            return None
        names = [term["name"] for term in self.spec["basis"]]
        columns = zip(names, self._beta.tolist(), self._dropped.tolist(), strict=True)
        coefficients = tuple(Coefficient(name, beta, bool(gone)) for name, beta, gone in columns)
        return Coefficients(coefficients, self._is_unique, len(self._delta))

    def explain(self, row: Batch) -> Explanation:
        """Raises NotExpressible: the kernel joins all features."""
        raise NotExpressible("its kernel compares whole rows, so no feature has a contribution")

    def form(self) -> Form:
        """Raises NotExpressible: linear weights are only a part of the function."""
        raise NotExpressible("no export format has a kernel expansion plus named functions")

    # -- refits ----------------------------------------------------------------------------------

    @property
    def problems(self) -> "list[Semiparametric]":
        """See Refittable."""
        return [self]

    def window(self) -> tuple[Batch, Floats, Floats]:
        """Retained rows, oldest first, their fingerprints, and their delta in the served
        function.
        """
        arrays = self._ring.state(self._first, self._last)
        rows = Batch(
            arrays["ring_indptr"],
            arrays["ring_indices"].astype(np.int32),
            arrays["ring_values"],
            arrays["ring_labels"],
            arrays["ring_weights"],
            self._dim,
        )
        return rows, fingerprints_of(self._ring, self._first, self._last), arrays["ring_duals"]

    def take_solution(self, arrays: Mapping[str, npt.NDArray[np.float64]]) -> int:
        """Serve the solution of a refit; the number of its rows that are still retained.

        fingerprints, duals      (n,)  of the refitted window: of each row, and its delta
        beta, dropped            (K,)  of each term of the basis; 1 if it depends on earlier ones
        unique                   (1,)  whether the window determines beta
        indptr, indices, values        the rows with delta != 0, as in Batch

        Raises RefitError if none of the rows is retained in its order, or the arrays are not a
        solution; then nothing has changed.
        """
        fingerprints, duals, beta = arrays["fingerprints"], arrays["duals"], arrays["beta"]
        k = len(self._terms)
        shapes = {"duals": fingerprints.shape, "beta": (k,), "dropped": (k,), "unique": (1,)}
        for name, shape in shapes.items():
            if arrays[name].shape != shape or len(shape) != 1:
                raise RefitError(f"{name} of shape {arrays[name].shape} do not fit {shape}")
        if not (np.isfinite(duals).all() and np.isfinite(beta).all()):
            raise RefitError("a number of the solution is not finite")
        delta = duals[duals != 0.0]
        support = self._rows_of(arrays, len(delta))
        now = fingerprints_of(self._ring, self._first, self._last)
        count = int(overlap(fingerprints, now, np.empty(max(1, len(now)), np.int64)))
        if count == 0:
            raise RefitError(_OTHERS)
        self._support, self._delta, self._beta = support, delta.copy(), beta.copy()
        self._dropped = (arrays["dropped"] != 0.0).astype(np.int64)
        self._is_unique = bool(arrays["unique"][0] != 0.0)
        self._is_fitted = True
        deltas = self._ring.rows[self._first : self._last, DUAL]
        deltas[:] = 0.0
        deltas[:count] = duals[len(duals) - count :]
        return count

    def _rows_of(self, arrays: Mapping[str, npt.NDArray[np.float64]], n: int) -> Batch:
        indptr, indices, values = (arrays[name] for name in ("indptr", "indices", "values"))
        try:
            with np.errstate(invalid="ignore"):
                whole = indptr.astype(np.int64), indices.astype(np.int32)
            return Batch(*whole, values.copy(), np.zeros(n), np.ones(n), self._dim)
        except SolverError as error:
            raise RefitError(f"its support rows are damaged: {error}") from error

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner."""
        support = self._support
        arrays: State = {
            "samples": np.array(self._samples),
            "mean": np.array(self._mean[kernels.MEAN]),
            "weight": np.array(self._mean[kernels.WEIGHT]),
            "is_fitted": np.array(int(self._is_fitted)),
            "is_unique": np.array(int(self._is_unique)),
            "beta": self._beta.copy(),
            "dropped": self._dropped.copy(),
            "support_indptr": support.indptr.copy(),
            "support_indices": support.indices.astype(np.int64),
            "support_values": support.values.copy(),
            "support_delta": self._delta.copy(),
        }
        return arrays | self._ring.state(self._first, self._last)

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        k = (len(self._terms),)
        numbers = ("samples", "mean", "weight", "is_fitted", "is_unique")
        check_arrays(state, dict.fromkeys(numbers, ()) | {"beta": k, "dropped": k})
        if int(state["samples"]) < 0:
            raise CorruptState(f"samples is {int(state['samples'])}")
        if float(state["weight"]) < 0.0:
            raise CorruptState(f"weight is {float(state['weight'])}")
        support, delta = self._support_in(state)
        self._last = self._ring.restore(state, self._dim)
        self._first = 0
        self._samples = int(state["samples"])
        self._mean[kernels.MEAN], self._mean[kernels.WEIGHT] = state["mean"], state["weight"]
        self._is_fitted, self._is_unique = bool(state["is_fitted"]), bool(state["is_unique"])
        self._beta = np.array(state["beta"], np.float64)
        self._dropped = np.array(state["dropped"], np.int64)
        self._support, self._delta = support, delta

    def _support_in(self, state: Mapping[str, npt.NDArray[Any]]) -> tuple[Batch, Floats]:
        names = ("support_indptr", "support_indices", "support_values", "support_delta")
        missing = [name for name in names if name not in state]
        if missing:
            raise CorruptState(f"the state has no {missing[0]}")
        indptr, indices, values, delta = (np.array(state[name]) for name in names)
        if delta.ndim != 1 or not is_storable(delta):
            raise CorruptState("the support rows and their delta do not fit together")
        n = len(delta)
        columns = (indptr, indices, values, np.zeros(n), np.ones(n))
        return rows_of_state("support rows", columns, self._dim), delta


def _numbers_of(term: Mapping[str, Any]) -> list[float]:
    """A term as kernels take it: see kernels.py."""
    numbers = [0.0] * kernels.N_COLUMNS
    numbers[kernels.FEATURE] = term.get("feature", 1) - 1
    numbers[kernels.POWER] = _POWERS.get(term["kind"], 0.0)
    numbers[kernels.PERIOD] = term.get("period", 0.0)
    numbers[kernels.SHIFT] = _SHIFTS.get(term["kind"], term.get("centre", 0.0))
    return numbers


def _no_rows(dim: int) -> Batch:
    nothing: Ints = np.zeros(1, np.int64)
    return Batch(nothing, np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0), dim)
