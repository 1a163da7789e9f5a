"""WithPast: any learner behind columns that are computed from earlier rows.

The stages are in front of the whole learner, a portfolio too: all that is retained has columns and
no inputs. A row that the learner rejects has entered them: the event has happened. Rows without a
label enter, and the learner does not see them. A row with a late label brings the columns that it
was served with.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.features.ages import Ages
from dualstream.solvers.history.columns import HistoryColumns
from dualstream.solvers.jit import Flags, Floats
from dualstream.solvers.online.class_choice import ClassScores
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, Outcome, State, predict_waiting, under
from dualstream.solvers.protocols.refit_weights import taking_weights
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.solvers.rows.columns.spec import age_features

_NOT_DELEGATED = ("learn_prefix", "forget")


class PastStage(Protocol):
    """A transformation of rows that depends on earlier rows.

    Transforming a batch of n rows equals transforming n single rows, bit for bit.
    """

    def learn(self, batch: Batch) -> Batch:
        """The rows with columns from before each row, which then enters. See HistoryColumns."""

    def peek(self, batch: Batch) -> Batch:
        """The rows as `learn` would transform each of them next, without a lasting effect."""

    def state(self) -> State:
        """The whole state, as copies."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""


class WithPast:
    """The Learner protocol for rows with inputs. What is not about rows the learner answers."""

    def __init__(self, spec: Mapping[str, Any], learner: Learner) -> None:
        self.spec = spec
        self._width = inputs_of(spec).row_width
        self._stages = _stages_of(spec)
        self._learner: Any = learner
        self.observed = 0
        """Rows without a label that have entered."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _NOT_DELEGATED:
            raise AttributeError(name)
        return getattr(self._learner, name)

    @property
    def history(self) -> HistoryColumns | None:
        """The stage of the history; None for a model that has only ages."""
        stage = self._stages.get("history")
        assert stage is None or isinstance(stage, HistoryColumns)
        return stage

    @property
    def core(self) -> Learner:
        """The learner that sees the columns."""
        return cast(Learner, self._learner)

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. Rows of weight 0 without a label only enter."""
        batch.check_width(self._width)
        rows, observed = _passed(self._stages, batch), _observed(batch)
        if observed is None:
            outcome = cast(Outcome, self._learner.learn(rows))
        else:
            outcome = self._learn_labelled(rows, observed)
            self.observed += int(np.count_nonzero(observed & (np.diff(batch.indptr) > 0)))
        outcome.columns = rows
        return outcome

    def _learn_labelled(self, rows: Batch, observed: Flags) -> Outcome:
        labelled = np.flatnonzero(~observed)
        learned = cast(Outcome, self._learner.learn(rows.take(labelled)))
        outcome = Outcome.of_rows_set_aside(learned, len(rows))
        outcome.set_aside, outcome.observed = None, observed
        for name in ("scores", "losses", "updated", "rejected", "predicted", "log_losses",
                     "class_losses"):  # fmt: skip
            column = getattr(outcome, name)
            if column is not None:
                column[labelled] = getattr(learned, name)
        if learned.relearned:
            outcome.relearned = int(labelled[learned.relearned - 1]) + 1
        return outcome

    def as_served(self, batch: Batch) -> Batch:
        """Rows as the learner would score them next: with columns, without inputs."""
        batch.check_width(self._width)
        for stage in self._stages.values():
            batch = stage.peek(batch)
        return batch

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        return cast(Floats, self._learner.predict(self.as_served(batch)))

    def predict_waiting(self, batch: Batch) -> tuple[Floats, Floats | None]:
        """See protocols/learner.py."""
        return predict_waiting(self._learner, self.as_served(batch))

    def predict_classes(self, batch: Batch) -> ClassScores:
        """See Multiclass."""
        return cast(ClassScores, self._learner.predict_classes(self.as_served(batch)))

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: a computed column is a feature like any other."""
        return explain(self._learner, self.as_served(row))

    def form(self) -> NoReturn:
        """Raises NotExpressible."""
        if self.spec.get("history"):
            raise NotExpressible(
                "columns of a history are computed from earlier rows, which a file does not have: "
                "create a model without `history`, and send these columns as numbers"
            )
        raise NotExpressible(
            "a part `age` of its times is measured from the newest row, which a file cannot know: "
            "create a model without it, and send ages as numbers"
        )

    def member_form(self, name: str) -> Form:
        """See MemberLearner: raises NotExpressible like `form`."""
        self._learner.member_form(name)
        return self.form()

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights: columns as at the time of each row, counted within the window."""
        rows, observed = _passed(_stages_of(self.spec), batch), _observed(batch)
        return taking_weights(self._learner).window(
            rows if observed is None else rows.take(~observed)
        )

    def state(self) -> State:
        """See Learner: arrays of the learner and of each stage, prefixed by their owner."""
        arrays = {f"core.{name}": array for name, array in self._learner.state().items()}
        for owner, stage in self._stages.items():
            arrays |= {f"{owner}.{name}": array for name, array in stage.state().items()}
        return arrays | {"observed": np.array(self.observed, np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        check_arrays(state, {"observed": ()})
        owners: list[tuple[str, Any]] = [("core.", self._learner)]
        owners += [(f"{owner}.", stage) for owner, stage in reversed(self._stages.items())]
        # The history is last. Its tables are large, and it needs no copy to be restored from.
        before = [owner.state() for _, owner in owners[:-1]]
        done = 0
        try:
            for prefix, owner in owners:
                owner.restore(under(prefix, state))
                done += 1
        except BaseException:
            for (_, owner), old in list(zip(owners, before, strict=False))[:done]:
                owner.restore(old)
            raise
        self.observed = int(state["observed"])


def make_with_past(spec: Mapping[str, Any], make: Callable[[], Learner]) -> WithPast:
    """The learner that `make` returns, behind the columns of its past."""
    return WithPast(spec, make())


def _stages_of(spec: Mapping[str, Any]) -> dict[str, PastStage]:
    """The stages of a specification, before the first row."""
    stages: dict[str, PastStage] = {}
    if spec.get("history"):
        bits = spec["features"]["bits"]
        stages["history"] = HistoryColumns(spec["history"], inputs_of(spec), bits, spec["task"])
    if age_features(spec):
        stages["ages"] = Ages(spec)
    return stages


def _passed(stages: Mapping[str, PastStage], batch: Batch) -> Batch:
    for stage in stages.values():
        batch = stage.learn(batch)
    return batch


def _observed(batch: Batch) -> Flags | None:
    """Which rows have no label and weight 0; None if none."""
    if batch.weights.all():
        return None
    observed = np.isnan(batch.labels) & (batch.weights == 0.0)
    return observed if observed.any() else None
