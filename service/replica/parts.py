"""StatePart: what an optional feature keeps in the state of one model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.row_ids import RowIds
from dualstream.solvers import Batch, Learner, Outcome
from dualstream.solvers.jit import Floats

if TYPE_CHECKING:
    from dualstream.solvers.online.class_choice import ClassScores

Arrays = Mapping[str, np.ndarray]
ArraysByPrefix = Mapping[str, Arrays]
"""Arrays of a state, without the prefix of their names; a missing prefix has none."""
Trend = tuple[str, str | None]
"""Name of a figure, and what it is of, such as a level or a member."""
LearnRows = Callable[[Batch, int], Outcome]


class Scored(NamedTuple):
    """Predictions of n rows by one state. Numbers need not be finite."""

    rows: Batch
    scores: Floats
    """(n,); of classes that of the best one."""
    probabilities: Floats | None
    """(n,) of the positive class; None for other tasks, and if the loss gives none."""
    classes: "ClassScores | None"
    """Of the task multiclass."""


class AnswerField(NamedTuple):
    """A field of the answers of predict, which has this name for `one` row and for `many`."""

    one: str
    many: str
    values: Sequence[Any]
    """One for each row, as in the JSON. The answer has null where the score is not finite."""


class StatePart:
    """A function of spec and journal, next to the learner. A model has one part of a type.

    No hook does anything by default. Hooks of the learning path are called only if the type
    overrides them, so a part that does not follow rows costs a row nothing.
    """

    __slots__ = ("first_served",)

    prefixes: ClassVar[tuple[str, ...]]
    """First words of the names of its arrays, up to the dot."""
    follows_observed = False
    """Do observed rows bring their scores, and what `served` returned? Only with `served`."""
    served_width = 0
    """Columns of `served`; a function of the specification."""
    first_served: int
    """Column of `batch.served_parts` at which they begin, set by Parts."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as arrays with their full names; none for a part without content."""
        return {}

    def bookkeeping(self) -> dict[str, np.ndarray]:
        """Further arrays of a snapshot that belong neither to the state nor to its digest."""
        return {}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        """Restore from arrays and, if there are any, bookkeeping.

        Raises CorruptState; the object is unusable then.
        """

    def roots(self) -> Sequence[object]:
        """Objects whose memory counts."""
        return ()

    # -- rows ------------------------------------------------------------------------------------

    def learn(
        self, learner: Learner, learn_rows: LearnRows, batch: Batch, first_seq: int
    ) -> Outcome:
        """Learn in place of `learn_rows`, to set rows aside. At most one part overrides it."""
        return learn_rows(batch, first_seq)

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        """Rows were learned; the first at `first_seq`. It may run in a thread.

        Rows with late labels have what `served` returned in `batch.served_parts`; others have NaN.
        It is None if no row has.
        """

    def on_reached(self, seq: int) -> None:
        """Rows up to `seq` were learned or set aside. Only models with a part that sets aside."""

    def on_names(self, names: Sequence[tuple[int, str]], since: int, seq: int) -> None:
        """Features (index, name) got names at `seq` that count from log position `since` on."""

    def on_ids(self, ids: RowIds, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        """Rows of which some have ids were learned, or set aside; the first at `first_seq`."""

    def check_learning(self, model: str, seq: int) -> None:
        """Raise Problem 429 if no more rows may be journalled after `seq`."""

    # -- controls --------------------------------------------------------------------------------

    def on_weights_set(self, seq: int) -> None:
        """The control at `seq` changed the weights in another way than by a row."""

    def on_forgotten(self, seq: int) -> None:
        """The control at `seq` made the model forget a row."""

    def on_restored(self, present: Self, copy_seq: int, seq: int) -> None:
        """This part, of a copy at `copy_seq`, replaces `present` by the control at `seq`."""

    @property
    def forgotten_seq(self) -> int:
        """Seq of the last control that made the model forget a row; no earlier state comes back.

        One part of a model may override it.
        """
        return 0

    @property
    def paused_since(self) -> int:
        """Seq from which on rows are set aside; 0 if they are learned.

        During a pause only a rollback, or a control of this part, may change the state.
        """
        return 0

    def ignore_pauses(self) -> None:
        """Learn all rows: the journal is replayed under another spec."""

    # -- the journal -----------------------------------------------------------------------------

    @property
    def replays_past(self) -> bool:
        """May a replica read entries from before its snapshot?"""
        return False

    def kept_after(self, oldest_snapshot: int, seq: int) -> int | None:
        """Seq after which a model at `seq` needs its journal; None if it needs none of it."""
        return None

    # -- answers ---------------------------------------------------------------------------------

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        """Fields that answers of predict have besides those of every model, or in their place.

        `Predicted` and `PredictedMany` declare them. It may run in a thread, and is a read.
        """
        return ()

    def served(self, scored: Scored) -> Floats:
        """Numbers (n, served_width) that rows keep while they wait for their labels."""
        return np.empty((len(scored.scores), 0))

    def fields(self, seq: int) -> Mapping[str, Any]:
        """Fields of the answer about a model at `seq`."""
        return {}

    def metrics(self) -> Mapping[str, Any]:
        """Fields of GET metrics."""
        return {}

    def progress(self, seq: int) -> Mapping[str, Any]:
        """Fields of a progress event of a model at `seq`."""
        return {}

    def trends(self) -> Mapping[Trend, float | None]:
        """Figures of the last rows, of which the server keeps a history; a few microseconds."""
        return {}

    def events(self) -> Iterable[Any]:
        """Events of the timeline."""
        return ()

    def metrics_by(self, column: str) -> Mapping[str, Any] | None:
        """Fields of the metrics by the values of a column; None if the part has none of it."""
        return None


AnyPart = TypeVar("AnyPart", bound=StatePart)


class Parts:
    """The parts of one model, with the hooks of its learning path looked up once.

    absent  records that the state lacks

    They are one object because CPython 3.11 shares the keys of objects with at most 29 attributes.
    A replica with more of them takes 1.3 kB more.
    """

    __slots__ = (
        "_by_type",
        "absent",
        "answers",
        "check_learning",
        "follows_observed",
        "forgetting",
        "gate",
        "on_ids",
        "on_learned",
        "on_names",
        "on_reached",
        "served_width",
        "trends",
    )

    def __init__(self, parts: Iterable[StatePart]) -> None:
        self._by_type = {type(part): part for part in parts}
        self.absent = AbsentSeqs()
        self.gate = self._only("learn")
        self.forgetting = self._only("forgotten_seq")
        self.on_learned = [part.on_learned for part in self._overriding("on_learned")]
        self.on_names = [part.on_names for part in self._overriding("on_names")]
        self.on_reached = [part.on_reached for part in self._overriding("on_reached")]
        self.on_ids = [part.on_ids for part in self._overriding("on_ids")]
        self.check_learning = [part.check_learning for part in self._overriding("check_learning")]
        self.answers = [part.answers for part in self._overriding("answers")]
        self.trends = [part.trends for part in self._overriding("trends")]
        self.follows_observed = any(part.follows_observed for part in self)
        self.served_width = 0
        for part in self._overriding("served"):
            part.first_served = self.served_width
            self.served_width += part.served_width

    def __iter__(self) -> Iterator[StatePart]:
        return iter(self._by_type.values())

    def find(self, kind: type[AnyPart]) -> AnyPart | None:
        """The part of this type, if the model has it."""
        part = self._by_type.get(kind)
        assert part is None or isinstance(part, kind)
        return part

    def _overriding(self, hook: str) -> list[StatePart]:
        base = getattr(StatePart, hook)
        return [part for part in self if getattr(type(part), hook) is not base]

    def _only(self, hook: str) -> StatePart | None:
        parts = self._overriding(hook)
        assert len(parts) <= 1
        return parts[0] if parts else None

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of all parts, and of the absent records."""
        arrays = {name: array for part in self for name, array in part.arrays().items()}
        return arrays | self.absent.arrays()

    def bookkeeping(self) -> dict[str, np.ndarray]:
        """The bookkeeping of all parts."""
        return {name: array for part in self for name, array in part.bookkeeping().items()}

    def served(self, scored: Scored) -> Floats | None:
        """Numbers (n, served_width) that rows keep while they wait; None if no part keeps any."""
        if not self.served_width:
            return None
        return np.hstack([part.served(scored) for part in self._overriding("served")])

    @property
    def prefixes(self) -> set[str]:
        """Prefixes of the names of their arrays."""
        return {prefix for part in self for prefix in part.prefixes}

    def fields(self, seq: int) -> dict[str, Any]:
        """Fields of the answer about a model at `seq`."""
        return {name: value for part in self for name, value in part.fields(seq).items()}

    def metrics(self) -> dict[str, Any]:
        """Fields of GET metrics."""
        return {name: value for part in self for name, value in part.metrics().items()}

    def progress(self, seq: int) -> dict[str, Any]:
        """Fields of a progress event of a model at `seq`."""
        return {name: value for part in self for name, value in part.progress(seq).items()}

    def metrics_by(self, column: str) -> Mapping[str, Any] | None:
        """Fields of the metrics by the values of a column; None if no part has any of it."""
        views = (part.metrics_by(column) for part in self)
        return next((view for view in views if view is not None), None)

    def on_weights_set(self, seq: int) -> None:
        """The control at `seq` changed the weights in another way than by a row."""
        for part in self:
            part.on_weights_set(seq)

    def on_forgotten(self, seq: int) -> None:
        """The control at `seq` made the model forget a row."""
        for part in self:
            part.on_forgotten(seq)

    @property
    def forgotten_seq(self) -> int:
        """Seq of the last control that made the model forget a row; no earlier state comes back."""
        return 0 if self.forgetting is None else self.forgetting.forgotten_seq

    @property
    def paused_since(self) -> int:
        """Seq from which on rows are set aside; 0 if they are learned."""
        return 0 if self.gate is None else self.gate.paused_since

    @property
    def why_paused(self) -> str | None:
        """Why no control but a rollback may change the state now, or None."""
        since = self.paused_since
        return f"learning is paused since seq {since}: resume the model first" if since else None

    @property
    def replays_past(self) -> bool:
        """May a replica read entries from before its snapshot?"""
        return any(part.replays_past for part in self)

    def kept_after(self, oldest_snapshot: int, seq: int) -> int | None:
        """Seq after which a model at `seq` needs its journal; None if it needs none of it."""
        needed = [part.kept_after(oldest_snapshot, seq) for part in self]
        return min((after for after in needed if after is not None), default=None)


MakeParts = Callable[[Mapping[str, Any]], Parts]
"""Makes the parts of a new model of a specification."""
