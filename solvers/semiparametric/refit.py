"""Refit of a semiparametric model: solves its window, on a copy of its state.

    min over w, beta of  |w|^2 / 2 + C sum_i c_i max(0, |y_i - h(x_i)| - epsilon)

with c_i the weight of row i; see `offline.semiparametric`. Its kernels release the GIL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidSpec, RefitError
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline import semiparametric as offline
from dualstream.solvers.offline.semiparametric.basis import Constant
from dualstream.solvers.offline.solution import Progress
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.semiparametric.learner import Semiparametric


@dataclass(frozen=True, slots=True)
class Refitted:
    """A solution of the copied window."""

    arrays: Mapping[str, npt.NDArray[np.float64]]
    """See `Semiparametric.take_solution`."""
    dropped: list[str]
    """Functions that, on these rows, are zero or depend on earlier ones."""
    coefficients_are_unique: bool
    """Whether the rows strictly within their bounds determine the coefficients."""


class Refitting:
    """A running refit; `problems` hold one copy of a state, which the refit owns.

    Raises RefitError if no rows are retained.
    """

    def __init__(
        self,
        problems: Sequence[tuple[Mapping[str, Any], State]],
        tol: float,
        method: str,
        options: Mapping[str, Any],
    ) -> None:
        [(spec, state)] = problems
        learner = Semiparametric(spec)
        learner.restore(state)
        self._spec, self._tol, self._method, self._options = spec, tol, method, options
        self._basis = [_offline(term) for term in spec["basis"]]
        self._window, self._fingerprints, duals = learner.window()
        self.rows = len(self._window)
        if not self.rows:
            raise RefitError("no row is retained")
        terms = learner.coefficients()
        self._start: tuple[Floats, dict[str, float]] | None = None
        if terms is not None:
            self._start = duals, {one.name: one.value for one in terms.terms}
        self.epochs = 0
        """Working sets solved, or interior point runs."""
        self.relative_gap: float | None = None
        self.dual: float | None = None
        # Unknown: the dual value of the current variables requires solving for beta first.
        self.relative_gap_before: float | None = None
        self.dual_before: float | None = None
        self._answer: offline.Semiparametric | None = None

    @property
    def converged(self) -> bool | None:
        """Whether the relative gap reached the tolerance; None while running."""
        return None if self._answer is None else self._answer.converged

    def run(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_look: "Callable[[Refitting], None]" = lambda refitting: None,
    ) -> bool:
        """Solve; False if cancelled. `on_look` is called at each evaluation of the gap.

        Raises RefitError for a window that cannot be solved.
        """

        def look(progress: Progress) -> bool:
            size = max(abs(progress.primal), abs(progress.dual))
            if np.isfinite(progress.gap) and size > 0.0:
                self.relative_gap = max(progress.gap, 0.0) / size
                self.dual = progress.dual
            on_look(self)
            return is_cancelled()

        spec = self._spec
        try:
            # Weights and labels may be extreme; the result is checked below.
            with np.errstate(all="ignore"):
                self._answer = offline.solve_semiparametric(
                    self._window, None, self._basis, spec["gamma"], spec["loss"]["epsilon"],
                    spec["C"], self._method, tol=self._tol, start=self._start, callback=look,
                    **self._options,
                )  # fmt: skip
        except InvalidSpec as error:
            raise RefitError(f"the window cannot be solved: {error}") from error
        answer = self._answer
        if answer.status == "cancelled":
            return False
        if not (len(answer.support) or np.any(answer.beta) or answer.converged):
            raise RefitError(f"{self._method} found no solution")
        self.epochs = answer.outer
        self.relative_gap, self.dual = answer.relative_gap, answer.dual
        on_look(self)
        return True

    def refitted(self) -> Refitted:
        """The solution."""
        answer = self._answer
        assert answer is not None
        names = [term["name"] for term in self._spec["basis"]]
        coefficients = answer.coefficients
        support = answer.support
        return Refitted(
            {
                "fingerprints": self._fingerprints,
                "duals": answer.delta,
                "beta": np.array([coefficients.get(name, 0.0) for name in names]),
                "dropped": np.array([float(name not in coefficients) for name in names]),
                "unique": np.array([float(answer.beta_is_unique)]),
                "indptr": support.indptr.astype(np.float64),
                "indices": support.indices.astype(np.float64),
                "values": support.values,
            },
            list(answer.dropped),
            answer.beta_is_unique,
        )


def _offline(term: Mapping[str, Any]) -> offline.Term:
    """A term of the specification as an offline term; specification features count from 1."""
    kind, name = term["kind"], term["name"]
    if kind == "constant":
        return Constant(name)
    feature = term["feature"] - 1
    if kind in ("linear", "quadratic"):
        make = offline.linear if kind == "linear" else offline.quadratic
        return make(feature, name)
    if kind == "sinc":
        return offline.sinc(feature, term["period"], term["centre"], name)
    wave = offline.sine if kind == "sine" else offline.cosine
    return wave(feature, term["period"], name)
