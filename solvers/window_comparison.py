"""Which window suits this stream: the same model under the others, learning beside it.

Nothing of it is served, and nothing of it changes the model: it is a metric, which costs as much as
learning the rows twice more.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from solvers.batch import Batch
from solvers.learner import Learner, State, under
from solvers.progressive import Progressive
from solvers.spec import make_learner
from solvers.spec_fields import Spec

WINDOWS = ("infinite", "exponential", "sliding")


class WindowComparison:
    """For the resolved `spec` of a model, each window of another kind, with its defaults."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._served = _kind_of(spec["window"])
        plain = {
            name: value for name, value in spec.items() if name not in ("compare_windows", "guard")
        }
        self._others: dict[str, tuple[Learner, Progressive]] = {}
        for kind in WINDOWS:
            if kind != self._served:
                learner = make_learner(_under(plain, kind))
                self._others[kind] = learner, Progressive.of(learner.spec)

    def learn(self, batch: Batch, first_seq: int) -> None:
        """Let the others learn the rows, whatever the model made of them.

        A row that waited for its label is scored here as it is learned.
        """
        for learner, progress in self._others.values():
            progress.count(batch, learner.learn(batch), first_seq)

    def summary(self, served: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The metrics under each window; `served` is the summary of the model itself."""
        told = []
        for kind in WINDOWS:
            if kind == self._served:
                summary = served
            else:
                summary = self._others[kind][1].summary()
            views = {name: summary[name] for name in ("rows", "since_start", "rolling")}
            told.append({"window": kind, "served": kind == self._served} | views)
        return told

    def state(self) -> State:
        """All of it, as copies."""
        arrays: State = {}
        for head, part in self._parts():
            arrays |= {f"{head}{name}": array for name, array in part.state().items()}
        return arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Be in this state, to the bit. Raises CorruptState, and is of no use then."""
        for head, part in self._parts():
            part.restore(under(head, state))

    def _parts(self) -> Iterator[tuple[str, Learner | Progressive]]:
        """Whoever has a state, and what the names of its arrays begin with."""
        for kind, (learner, progress) in self._others.items():
            yield f"{kind}.learner.", learner
            yield f"{kind}.progress.", progress


def _kind_of(window: Any) -> str:
    return window if isinstance(window, str) else str(window["kind"])


def _under(spec: Mapping[str, Any], window: str) -> Spec:
    """The specification with another window; a sliding one needs its rows retained."""
    changed = dict(spec) | {"window": window}
    if window == "sliding":
        changed["retain"] = max(spec["retain"], 2000)
    return changed
