"""Decisions of a multiclass model with `costs`: part of the replicated state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.online.class_choice import ClassScores
from dualstream.solvers.online.class_costs import ClassCosts, name_of
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import MAX_CLASSES, class_label, names_of, names_state
from dualstream.solvers.rows.columns.inputs import key_number

RECENT = 1000
"""Rows whose decisions are kept."""
_NONE = -1
_LABEL = 0


class ClassDecisions:
    """Labelled rows with the class of least expected cost, and the most probable one."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._costs = ClassCosts(spec["costs"])
        self._start()

    def _start(self) -> None:
        self._class_index: dict[str, int] = {}
        self._counts = np.zeros(MAX_CLASSES, np.int64)
        self._sums = np.zeros(2)
        self._recent = np.zeros((RECENT, 3), np.int64)
        self._rows = 0
        self._numbered: tuple[tuple[str, ...], dict[float, str]] = ((), {})

    def labels(self, scored: ClassScores) -> list[Any]:
        """The class of least expected cost of each row, as answers name it."""
        decided = self._decided(scored).tolist()
        return [class_label(scored.classes[one]) if one >= 0 else None for one in decided]

    def served(self, scored: ClassScores) -> Floats:
        """(n, 2): numbers of the class of least expected cost and of the most probable one; 0 for
        none. Rows keep them while they wait for their labels."""
        numbers = np.array([*map(key_number, scored.classes), 0.0])  # of index -1, too
        served: Floats = numbers[np.stack([self._decided(scored), scored.best], axis=1)]
        return served

    def _decided(self, scored: ClassScores) -> Ints:
        assert scored.probabilities is not None
        n = np.full(len(scored.best), len(scored.classes), np.int64)
        return self._costs.decide(scored.probabilities, n, scored.classes)

    def count(self, batch: Batch, outcome: Outcome, as_served: Floats | None = None) -> None:
        """Count decisions from before the rows were learned, in their order.

        Begins again where metrics do.

        as_served  (n, 2) of rows with late labels, see `served`; NaN for others
        """
        if not batch.classes or outcome.class_losses is None or outcome.predicted is None:
            return  # observed rows alone
        learned = ~outcome.rejected & (batch.weights > 0.0)
        if outcome.relearned:
            self._start()
            learned[: outcome.relearned] = False
        decided = self._costs.decide_by_losses(outcome.class_losses, outcome.classes)
        for row in np.flatnonzero(learned).tolist():
            label = batch.classes[int(batch.labels[row])]
            if as_served is not None and not np.isnan(as_served[row, 0]):
                chosen = self._classes_of(as_served[row].tolist(), outcome.classes)
            else:
                indices = int(decided[row]), int(outcome.predicted[row])
                chosen = [outcome.classes[one] if one >= 0 else None for one in indices]
            self._add(label, chosen)

    def _classes_of(self, numbers: Sequence[float], classes: tuple[str, ...]) -> list[str | None]:
        if classes != self._numbered[0]:
            self._numbered = classes, {key_number(name): name for name in classes}
        return [self._numbered[1].get(number) for number in numbers]

    def _add(self, label: str, chosen: Sequence[str | None]) -> None:
        for name in (label, *chosen):
            if name is not None and name not in self._class_index:
                if len(self._class_index) == MAX_CLASSES:
                    return
                self._class_index[name] = len(self._class_index)
        indices = [_NONE if name is None else self._class_index[name] for name in (label, *chosen)]
        self._counts[indices[_LABEL]] += 1
        self._recent[self._rows % RECENT] = indices
        self._sums += [self._costs.cost(label, name) for name in chosen]
        self._rows += 1

    def figures(self) -> dict[str, Any]:
        """The field `costs` of the metrics."""
        names = tuple(self._class_index)
        recent = self._recent[: min(self._rows, RECENT)]
        classes = [*names, None]
        sums = np.zeros(2)
        for label, *chosen in recent.tolist():
            sums += [self._costs.cost(names[label], classes[one]) for one in chosen]
        counts = np.bincount(recent[:, _LABEL], minlength=len(names))
        listed = dict.fromkeys(
            name for label, row in self._costs.costs.items() for name in (label, *row)
        )
        seen = set(map(name_of, names))
        return {
            "costs": {
                "since_start": self._means(self._sums, self._counts[: len(names)]),
                "rolling": self._means(sums, counts),
                "unseen_classes": [one for one in listed if one not in seen],
            }
        }

    def _means(self, sums: npt.NDArray[np.float64], counts: Ints) -> dict[str, Any]:
        rows = int(counts.sum())
        if not rows:
            return {"rows": 0} | dict.fromkeys(("cost", "best_constant", "most_probable"))
        cost, probable = (sums / rows).tolist()
        constant = self._costs.least(counts.astype(np.float64), tuple(self._class_index)) / rows
        return {
            "rows": rows, "cost": cost, "best_constant": constant, "most_probable": probable
        }  # fmt: skip

    def state(self) -> State:
        """The state, as copies."""
        names = tuple(self._class_index)
        return {
            "counts": self._counts[: len(names)].copy(),
            "sums": self._sums.copy(),
            "recent": self._recent[: min(self._rows, RECENT)].copy(),
            **names_state(names),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state; without arrays no row was decided.

        Raises CorruptState, and the object is unusable then.
        """
        self._start()
        if not state:
            return
        names = names_of(state)
        check_arrays(state, {"counts": (len(names),), "sums": (2,)})
        counts = state["counts"]
        self._rows = int(counts.sum())
        recent = self._recent[: min(self._rows, RECENT)]
        check_arrays(state, {"recent": recent.shape})
        recent[...] = state["recent"]
        if len(counts) and counts.min() < 0 or ((recent < _NONE) | (recent >= len(names))).any():
            raise CorruptState("the counts of decisions do not fit each other")
        self._class_index = {name: index for index, name in enumerate(names)}
        self._counts[: len(names)], self._sums[:] = counts, state["sums"]
